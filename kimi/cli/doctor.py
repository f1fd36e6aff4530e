"""`doctor`: checks this host, or this slice, before a run."""

import argparse
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from kimi.assets import TINY_K3
from kimi.cli import checks
from kimi.cli.checks import Finding
from kimi.cli.cluster import INDEX
from kimi.cli.console import print_json
from kimi.cli.generate import add_drafter_option
from kimi.errors import InputError
from kimi.jax_private import private
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.mesh import RANKS, RANKS_PER_HOST
from kimi.models import DRAFT_FOLDER
from kimi.startup import find_devices

_WAIT_SECONDS = 60
_MARKS = {True: "ok", False: "FAILED", None: "-"}


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--model", help="folder or hub id (default: small K3, or none with --store)")
    add_drafter_option(p)
    p.add_argument("--store", type=Path, help="pre-sharded weights, as `preshard` writes them")
    p.add_argument("--ranks", type=int, choices=RANKS, help="TPU cores needed (32: a whole slice)")
    p.add_argument("--experts", choices=tuple(ExpertFormat), default="mxfp4", help="their format")
    p.add_argument("--disk", type=Path, default=Path(), help="of answers and logs (default: here)")
    p.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> None:
    """Runs the command, for this host. Raises InputError if a check failed."""
    findings = []
    for finding in _findings(args):
        findings.append(finding)
        if not args.json:
            _print(finding)
    failed = [finding.check for finding in findings if finding.good is False]
    host = os.environ.get(INDEX, "0")
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print_json({"host": int(host), "good": not failed, "checks": rows})
    if failed:
        raise InputError(
            f"host {host}: {len(failed)} of {len(findings)} checks failed: {', '.join(failed)}"
        )


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    yield checks.versions()
    finding, devices = checks.devices(find_devices, args.ranks)
    yield finding
    if devices:
        yield checks.topology(devices)
    on_tpu = bool(devices) and devices[0].platform == "tpu"
    ranks = args.ranks or (len(devices) if on_tpu and len(devices) in RANKS else None)
    checkpoint, layout = None, None
    if args.model is not None or args.store is None:
        finding, checkpoint = checks.model(args.model or str(TINY_K3))
        yield finding
        if checkpoint is not None:
            yield checks.drafter(checkpoint, args.drafter, DRAFT_FOLDER)
            finding, layout = checks.division(checkpoint.config, ranks, args.experts)
            yield finding
    if args.store is not None:
        hosts = _own_hosts(devices)
        finding, stored = checks.store(args.store, checkpoint, ranks, args.experts, hosts)
        yield finding
        layout = stored or layout
    if devices:
        yield checks.hbm(jax.local_devices(), layout)
    yield checks.disk(args.disk)
    yield _clock() if devices else checks.clock(time.time())


def _own_hosts(devices: Sequence[jax.Device]) -> range:
    """Hosts of the mesh whose files must be here: all of them if there is one process."""
    if not devices or jax.process_count() == 1:
        return range(RANKS[-1] // RANKS_PER_HOST)
    first = jax.local_devices()[0]
    host = first.coords[2] if first.platform == "tpu" else jax.process_index()
    return range(host, host + 1)


def _clock() -> Finding:
    """Compares the clocks of all hosts, after a barrier."""
    if jax.process_count() == 1:
        return checks.clock(time.time())
    table, wait = private("distributed", "global_state").client, _WAIT_SECONDS * 1000
    assert table is not None
    try:
        table.wait_at_barrier("kimi/doctor", wait)
        now = time.time()
        table.key_value_set(f"kimi/clock/{jax.process_index()}", repr(now))
        keys = [f"kimi/clock/{i}" for i in range(jax.process_count())]
        return checks.clock(now, [float(table.blocking_key_value_get(k, wait)) for k in keys])
    except RuntimeError as e:
        reason = " ".join(str(e).split())[:200]
        remedy = "look at the logs of the other hosts: one of them has stopped before this check"
        return Finding("clock", False, f"the other hosts cannot be reached: {reason}", remedy)


def _print(finding: Finding) -> None:
    print(f"{_MARKS[finding.good]:<7}{finding.check:<10}{finding.found}", flush=True)
    if finding.remedy:
        print(f"{'':<17}-> {finding.remedy}", flush=True)
