"""`bench-codecs`: how fast this machine decodes and re-encodes weights in memory."""

import argparse

from kimi.cli.console import print_json
from kimi.errors import InputError
from kimi.lab.bench.codecs import measure


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--experts", type=int, default=4, help="experts to work on (default 4)")
    p.add_argument("--json", action="store_true", help="print one line of JSON")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    if args.experts < 1:
        raise InputError(f"--experts: expected at least 1, found {args.experts}")
    figures = measure(args.experts)
    if args.json:
        print_json({name: round(value, 3) for name, value in figures.items()})
        return
    print(f"experts: {args.experts}, of 3 weights each, random codes; GB/s of packed input")
    print(f"  memory copy               {figures['copy_gb_per_s']:7.2f}")
    print(f"  MXFP4 to FP8, read back   {figures['mxfp4_to_fp8_gb_per_s']:7.2f}")
    print(f"  MXFP4 to float32          {figures['mxfp4_to_float32_gb_per_s']:7.2f}")
    print(f"extra memory, MXFP4 to FP8  {figures['extra_memory_per_input_byte']:7.2f} x the input")
