"""Short schedules in the compiler's notation, written for the tests."""

# ruff: noqa: E501

HEADER = "= control target key start\nLB: loop body\n= control target key end\n"

# A counted loop: the trip count comes from operand 0 through SMEM, each turn copies a tile into one
# of two slots. Six bundles issue after the branch.
LOOP = (
    HEADER
    + """
     0   :  { %s1_s0 = inlined_call_operand.hbm [shape: s32[8], index: 0, kind: input, shape index: {}] /* a: {}, b;; c */  ;;  %s2_s1 = inlined_call_operand.hbm [shape: u32[8,128], index: 1, kind: input] }
   0x1   :  { %3 = vsyncpa [#allocation7], 0  ;;  %s4_s2 = smov [#allocation5] /* materialized constant */ }
   0x2   :  { %5 = dma.hbm_to_smem /*hbm=*/%s1_s0, /*size_in_granules=*/16, /*smem=*/%s4_s2, /*dst_syncflagno=*/[#allocation7] }
   0x3   :  { %6 = dma.done.wait [#allocation7], 16 }
   0x4   :  { %7 = vsyncadd [#allocation7], 4294967280 }
   0x5   :  { %s8_s3 = sld [smem:[#allocation5 + $0x1]]  ;;  %s9_s4 = smov 0 }
   0x6 LB: > { %s10_s5 = sand.u32 1, %s20_s4  ;;  %s20_s4 = sphi %s9_s4, %s17_s4 } /* Start region 9 */
   0x7   : > { %s11_s6 = scalar_lea.sflag [#allocation4], %s10_s5  ;;  %12 = vtrace 3087007744 /* TraceMeStart(tile) [ */ }
   0x8   : > { %13 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s2_s1, /*size_in_granules=*/128, /*vmem=*/[#allocation3], /*dst_syncflagno=*/%s11_s6 }
   0x9   : > { %14 = dma.done.wait %s11_s6, 128 /* loc("/src/k.py":12:3 to :9) */ }
   0xa   : > { %15 = vsyncadd %s11_s6, 4294967168  ;;  %s17_s4 = sadd.s32 1, %s20_s4 }
   0xb   : > { %p18_p0 = scmp.ge.s32.totalorder %s17_s4, %s8_s3  ;;  %19 = vtrace 3355443200 /* ] TraceMeEnd(tile) */ }
   0xc   :  { %21 = sbr.rel (!%p18_p0) target = $region9 }
   0xd   :  {}
   0xe   :  { %22 = vsyncpa [#allocation7], 1 }
"""
)

# Division on the scalar unit, a guarded move, a value popped from the vector side.
SCALARS = (
    HEADER
    + """
     0   :  { %s1_s0 = smov 17  ;;  %s2_s1 = smov 5 }
   0x1   :  { %3 = sdivrem.u32 %s1_s0, %s2_s1 /* kDiv */ }
   0x2   :  { %s4_s2 = spop.drf %3 }
   0x3   :  { %5 = sdivrem.u32 %s1_s0, %s2_s1 /* loc("/src/k.py":3:1 to :9) :: kRem */ }
   0x4   :  { %s6_s3 = spop.drf %5  ;;  %p7_p0 = scmp.lt.s32.totalorder %s2_s1, 3 }
   0x5   :  { %s8_s0 = smov (!%p7_p0, %s1_s0), 99  ;;  %s9_s4 = smov (%p7_p0, %s1_s0), 98 }
   0x6   :  { %10 = vpush %v1_v0 }
   0x7   :  { %s11_s5 = spop %10  ;;  %s12_s6 = scvt.s32.f32 %s2_s1 }
   0x8   :  { %s13_s7 = smul.f32 1.5, %s12_s6 }
   0x9   :  { %s14_s8 = scvt.f32.s32 %s13_s7 }
   0xa   :  { %15 = sst [smem:[#allocation1]] %s4_s2  ;;  %16 = sst [smem:[#allocation1 + $0x1]] %s6_s3 }
   0xb   :  { %17 = sst [smem:[#allocation1 + $0x2]] %s8_s0  ;;  %18 = sst [smem:[#allocation1 + $0x3]] %s9_s4 }
   0xc   :  { %19 = sst [smem:[#allocation1 + $0x4]] %s11_s5  ;;  %20 = sst [smem:[#allocation1 + $0x5]] %s14_s8 }
   0xd   :  { %s21_s9 = scalar_lea.smem [#allocation1], %s2_s1 }
   0xe   :  { %22 = sst [smem:[%s21_s9 + $0x1]] %s21_s9  ;;  %s23_s0 = sfrobnicate %s2_s1 }
"""
)

# A remote copy to a core of another chip, waited for on both ends, then a signal that nobody waits for.
EXCHANGE = (
    HEADER
    + """
     0   :  { %s1_s0 = smov 163840  ;;  %s2_s1 = smov [#allocation2] }
   0x1   :  { %s3_s2 = sor.u32 [#allocation8], %s1_s0  ;;  %s4_s3 = smov [#allocation9] }
   0x2   :  { %5 = dma.general /*src=*/%s2_s1, /*size_in_granules=*/64, /*dst=*/%s2_s1, /*dst_syncflagno=*/%s3_s2, /*src_syncflagno=*/%s4_s3, /*stridedescaddr=*/[#allocation6] }
   0x3   :  { %6 = dma.done.wait [#allocation8], 64 }
   0x4   :  { %7 = vsyncadd [#allocation8], 4294967232 }
   0x5   :  { %8 = dma.done.wait [#allocation9], 64 }
   0x6   :  { %9 = vsyncadd [#allocation9], 4294967232 }
   0x7   :  { %10 = vsyncadd.remote %s3_s2, 1 }
   0x8   :  { %11 = vwait.ge [#allocation3], 1 }
"""
)

# An SMEM word stored before and after each of three copies from VMEM into its buffer.
FILLS = (
    HEADER
    + """
     0   :  { %s1_s0 = sld [smem:[#allocation5]]  ;;  %s2_s1 = smov [#allocation5] }
   0x1   :  { %3 = sst [smem:[#allocation1]] %s1_s0 }
"""
    + "".join(
        f"""
   0x{4 * n + 2:x}   :  {{ %{n}0 = dma.vmem_to_smem /*vmem=*/[#allocation6], /*size_in_granules=*/16, /*smem=*/%s2_s1, /*dst_syncflagno=*/[#allocation7] }}
   0x{4 * n + 3:x}   :  {{ %{n}1 = dma.done.wait [#allocation7], 16 }}
   0x{4 * n + 4:x}   :  {{ %{n}2 = vsyncadd [#allocation7], 4294967280  ;;  %s{n}3_s2 = sld [smem:[#allocation5]] }}
   0x{4 * n + 5:x}   :  {{ %{n}4 = sst [smem:[#allocation1 + $0x{n + 1:x}]] %s{n}3_s2 }}
"""
        for n in range(3)
    )
)

# Branches that skip a wait. The first one's delay slots are one empty bundle that stands for all;
# the second one's are written out.
SKIPPED = (
    HEADER
    + """
     0   :  { %p1_p0 = scmp.eq.s32.totalorder 1, 1 }
   0x1   :  { %2 = sbr.rel (%p1_p0) target = $region5 }
   0x2   :  {}
   0x3   :  { %s3_s1 = smov 3 }
   0x4   :  { %4 = dma.done.wait [#allocation7], 16 }
   0x5   :  { %5 = sbr.rel (%p1_p0) target = $region6 } /* Start region 5 */
   0x6   :  { %s6_s2 = smov 4 }
   0x7   :  {}
   0x8   :  { %s7_s3 = smov 5 }
   0x9   :  { %s8_s4 = smov 6 }
   0xa   :  {}
   0xb   :  { %s9_s5 = smov 7 }
   0xc   :  { %10 = dma.done.wait [#allocation7], 16 }
   0xd   :  { %11 = sst [smem:[#allocation1]] %s9_s5 } /* Start region 6 */
"""
)

# A pointer cast of a value that a predicate keeps from being written: the register stays 8.
CAST = (
    HEADER
    + """
     0   :  { %s1_s0 = smov 8  ;;  %p2_p0 = scmp.eq.s32.totalorder 1, 2 }
   0x1   :  { %s3_s0 = smov (%p2_p0), 9  ;;  %s4_s0 = int_to_ptr.vmem [resolvable:$true] %s3_s0 }
   0x2   :  { %s5_s0 = sphi %s1_s0, %s6_s0 }
   0x3   :  { %7 = sst [smem:[#allocation1]] %s5_s0 }
"""
)

ALLOCATIONS = """
  #allocation0 [shape = 'u32[]', space=smem, size = 0x4, offset = 0xfff88, fixed_abs, tag = 'smem constant byte address 0xfff88 - partition id location']
    #allocation4 [shape = 'bf16[16,7168]{1,0:T(16,128)(2,1)}', space=vmem, size = 0x38000, offset = 0x1000, scoped, tag = 'scratch operand']
    #allocation5 [shape = 's32[2]{0}', space=sflag, size = 0x8, offset = 0x4, scoped, tag = 'scratch operand']
"""
