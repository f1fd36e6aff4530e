"""The launchers, with processes of this machine as hosts and fakes of ssh, gcloud and Slurm."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import kimi
from kimi.assets import TINY_K3
from tests import waiting

ROOT = Path(kimi.__file__).parents[1]
LAUNCH = ROOT / "scripts" / "launch"
SCRIPTS = [
    *(ROOT / "scripts").glob("*.sh"), *LAUNCH.glob("*.sh"), LAUNCH / "slurm.sbatch",
]  # fmt: skip
# Of a remote shell it has what matters here: the far side is hung up when the near side ends.
SSH = """\
import os, signal, subprocess, sys
far = subprocess.Popen(["bash", "-c", sys.argv[-1]], start_new_session=True)
def hang_up(*unused):
    os.killpg(far.pid, signal.SIGHUP)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, hang_up)
sys.exit(far.wait() % 256)
"""


def executable(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.fixture
def environment(tmp_path):
    """What the launchers find: no preflight, this interpreter, no .env but the test's own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KIMI_", "TPU_", "CLOUD_"))}
    clean.pop("XLA_FLAGS", None)
    empty = tmp_path / "empty.env"
    empty.touch()
    far = executable(tmp_path, "far.py", SSH)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return clean | {
        "KIMI_ENV_FILE": str(empty), "KIMI_PYTHON": sys.executable, "KIMI_PREFLIGHT": "off",
        "KIMI_LOGS": str(tmp_path / "logs"), "KIMI_DIR": str(ROOT), "KIMI_PORT": str(port),
        "KIMI_SSH": f"{sys.executable} {far}", "TPU_SKIP_MDS_QUERY": "1",
        "KIMI_JOIN_SECONDS": str(int(waiting.limit(30))),
    }  # fmt: skip


def launch(script: str, environment, *command, seconds=10) -> subprocess.CompletedProcess[str]:
    return waiting.run(["bash", LAUNCH / script, *command], seconds, env=environment)


def variables(log: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in log.read_text().splitlines() if "=" in line)


def alive(pid: int) -> bool:
    """Whether a process is there, and not only waited for by whoever has inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def all_end(pids: Path) -> None:
    for file in pids.iterdir():
        waiting.until(lambda pid=int(file.read_text()): not alive(pid), "a process ends")


def all_started(pids: Path, count: int) -> None:
    names = [str(i) for i in range(count)]
    waiting.until(
        lambda: all((pids / n).exists() and (pids / n).read_text() for n in names), "all start"
    )


def test_shellcheck():
    checker = Path(sys.executable).with_name("shellcheck")
    found = shutil.which("shellcheck") or (checker if checker.exists() else None)
    if found is None:
        pytest.skip("shellcheck is not installed (extra dev)")
    done = waiting.run([found, "-x", "-P", "SCRIPTDIR", *SCRIPTS], cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_four_hosts_are_told_the_slice(environment, tmp_path):
    hosts = "a.example,b.example,c.example,d.example"
    done = launch("tpu-vm.sh", environment | {"KIMI_HOSTS": hosts}, "env")
    assert done.returncode == 0, done.stderr
    for i in range(4):
        found = variables(tmp_path / "logs" / f"host-{i}.log")
        assert found["TPU_PROCESS_BOUNDS"] == "1,1,4"
        assert found["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "2,2,1"
        assert found["TPU_PROCESS_ADDRESSES"] == ",".join(f"{h}:8479" for h in hosts.split(","))
        assert found["CLOUD_TPU_TASK_ID"] == found["TPU_WORKER_ID"] == str(i)
        assert found["TPU_WORKER_HOSTNAMES"] == found["KIMI_HOSTS"] == hosts
        assert found["KIMI_COORDINATOR"] == f"a.example:{environment['KIMI_PORT']}"
        assert (found["KIMI_HOST_COUNT"], found["KIMI_HOST_INDEX"]) == ("4", str(i))
        assert "KIMI_TPU" not in found
        assert (tmp_path / "logs" / f"host-{i}.rc").read_text() == "0\n"
        assert f"{i}| KIMI_HOST_INDEX={i}" in done.stdout


def test_what_the_platform_says_is_left_alone(environment, tmp_path):
    given = {"TPU_PROCESS_BOUNDS": "4,1,1", "TPU_WORKER_HOSTNAMES": "x,y,z,w"}
    host = {"KIMI_HOSTS": "a,b,c,d", "KIMI_HOST_INDEX": "2"}
    assert launch("host.sh", environment | host | given, "env").returncode == 0
    assert variables(tmp_path / "logs" / "host-2.log").items() >= given.items()


def test_other_numbers_of_hosts_are_told_no_slice(environment, tmp_path):
    host = {"KIMI_HOSTS": "a,b", "KIMI_HOST_INDEX": "1"}
    assert launch("host.sh", environment | host, "env").returncode == 0
    assert "TPU_PROCESS_BOUNDS" not in variables(tmp_path / "logs" / "host-1.log")


def test_arguments_arrive_as_they_are(environment, tmp_path):
    arguments = ["two words", "$HOME", "'", '"', "a;b", ""]
    show = executable(tmp_path, "show.py", "import sys, json; print(json.dumps(sys.argv[1:]))")
    done = launch("tpu-vm.sh", environment | {"KIMI_HOSTS": "a"}, show, *arguments)
    assert f"0| {json.dumps(arguments)}" in done.stdout.splitlines()


FAILS = """\
import os, pathlib, sys, time
index = os.environ["KIMI_HOST_INDEX"]
pathlib.Path(sys.argv[1], index).write_text(str(os.getpid()))
if index == "1":
    while len(os.listdir(sys.argv[1])) < 3:
        time.sleep(0.05)
    sys.exit(7)
time.sleep(10 ** 6)
"""


def test_the_first_failure_ends_all(environment, tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()
    script = executable(tmp_path, "fails.py", FAILS)
    done = launch("tpu-vm.sh", environment | {"KIMI_HOSTS": "a,b,c"}, script, pids)
    assert done.returncode == 7
    assert "launch: host 1 (b): exit code 7: ending the others" in done.stderr
    all_end(pids)
    logs = tmp_path / "logs"
    assert (logs / "host-1.rc").read_text() == "7\n"
    assert {(logs / f"host-{i}.rc").read_text() for i in (0, 2)} == {"129\n"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_launcher_ends_all(environment, tmp_path, number):
    """SIGINT comes to the whole group of processes, as from a terminal's Ctrl-C."""
    pids = tmp_path / "pids"
    pids.mkdir()
    script = executable(tmp_path, "sleeps.py", FAILS.replace('"1"', '"none"'))
    command = ["bash", LAUNCH / "tpu-vm.sh", script, pids]
    changed = environment | {"KIMI_HOSTS": "a,b"}
    with waiting.started(command, env=changed, start_new_session=True) as process:
        all_started(pids, 2)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(waiting.limit(10)) == 130
        all_end(pids)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_stopped_host_stops_its_command(environment, tmp_path, number, code):
    pids = tmp_path / "pids"
    pids.mkdir()
    script = executable(tmp_path, "sleeps.py", FAILS)
    host = {"KIMI_HOSTS": "a", "KIMI_HOST_INDEX": "0"}
    command = ["bash", LAUNCH / "host.sh", script, pids]
    with waiting.started(command, env=environment | host) as process:
        all_started(pids, 1)
        process.send_signal(number)
        assert process.wait(waiting.limit(10)) == code
        all_end(pids)
    assert (tmp_path / "logs" / "host-0.rc").read_text() == f"{code}\n"


def test_env_file(environment, tmp_path):
    file = tmp_path / "x.env"
    mark = tmp_path / "executed"
    file.write_bytes(
        b"# a comment\n\nPLAIN=a b=c\r\nexport QUOTED=\"two words\"\n  SINGLE='$HOME'\nEMPTY=\n"
        + f"CODE=$(touch {mark})\nKIMI_PORT=1\nKIMI_HOSTS=h0,h1\nLAST=no newline".encode()
    )
    host = {"KIMI_ENV_FILE": str(file), "KIMI_HOST_INDEX": "1"}
    assert launch("host.sh", environment | host, "env").returncode == 0
    found = variables(tmp_path / "logs" / "host-1.log")
    assert found["PLAIN"] == "a b=c" and found["QUOTED"] == "two words"
    assert found["SINGLE"] == "$HOME" and found["EMPTY"] == "" and found["LAST"] == "no newline"
    assert found["CODE"] == f"$(touch {mark})" and not mark.exists()
    assert found["KIMI_COORDINATOR"] == f"h0:{environment['KIMI_PORT']}", "the environment wins"


def test_the_example_is_an_env_file(environment, tmp_path):
    host = {"KIMI_HOSTS": "a", "KIMI_HOST_INDEX": "0"}
    host["KIMI_ENV_FILE"] = str(LAUNCH / "env.example")
    assert launch("host.sh", environment | host, "env").returncode == 0
    found = variables(tmp_path / "logs" / "host-0.log")
    assert found["KIMI_ZONE"] == "us-central1-c" and "HF_TOKEN" not in found
    ignored = waiting.run(["git", "-C", ROOT, "check-ignore", "-q", ".env"])
    assert ignored.returncode in (0, 128), "secrets stay out of the repository"  # 128: no checkout


@pytest.mark.parametrize(
    "script, change, message",
    [
        ("host.sh", {}, "KIMI_HOSTS: expected host names, found none"),
        ("host.sh", {"KIMI_HOSTS": "a,b"}, "KIMI_HOST_INDEX: expected 0 to 1, found ''"),
        (
            "host.sh", {"KIMI_HOSTS": "a,b", "KIMI_HOST_INDEX": "2"},
            "KIMI_HOST_INDEX: expected 0 to 1, found '2'",
        ),
        ("host.sh", {"KIMI_ENV_FILE": "/no/such.env"}, "KIMI_ENV_FILE: /no/such.env: no such file"),
        ("tpu-vm.sh", {"KIMI_ENV_FILE": "/no.env"}, "KIMI_ENV_FILE: /no.env: no such file"),
        (
            "host.sh", {"KIMI_HOSTS": "a", "KIMI_HOST_INDEX": "0", "KIMI_LOGS": "/no/such"},
            "KIMI_LOGS: /no: no such folder",
        ),
        (
            "host.sh", {"KIMI_HOSTS": "a", "KIMI_HOST_INDEX": "0", "KIMI_LOGS": "/dev/null"},
            "KIMI_LOGS: expected a folder that can be written, found '/dev/null'",
        ),
        (
            "host.sh", {"KIMI_HOSTS": "a", "KIMI_HOST_INDEX": "0", "KIMI_PORT": "8479"},
            "KIMI_PORT: 8479 is libtpu's: choose another",
        ),
        ("tpu-vm.sh", {}, "expected KIMI_TPU and KIMI_ZONE, or KIMI_HOSTS"),
        ("tpu-vm.sh", {"KIMI_TPU": "x"}, "KIMI_ZONE: expected the zone of x, found none"),
    ],
)  # fmt: skip
def test_bad_launches(environment, script, change, message):
    done = launch(script, environment | change, "true")
    assert done.returncode == 2 and done.stderr == f"launch: {message}\n" and done.stdout == ""


@pytest.mark.parametrize("script", ["host.sh", "tpu-vm.sh"])
@pytest.mark.parametrize("hosts", [" ", ",", "a,", ",a", "a,,b", "a, b", "a b", "u@a", "-a", "a;b"])
def test_bad_hosts(environment, script, hosts):
    changed = environment | {"KIMI_HOSTS": hosts, "KIMI_HOST_INDEX": "0"}
    done = launch(script, changed, "true")
    assert done.returncode == 2 and done.stdout == ""
    names = "names with a comma and no space between them"
    assert done.stderr == f"launch: KIMI_HOSTS: expected {names}, found '{hosts}'\n"
    done = launch(script, changed | {"KIMI_HOSTS": "a,b,a"}, "true")
    assert done.stderr == "launch: KIMI_HOSTS: expected every host once, found 'a' twice\n"


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1", " 1", "1.0", "1e3", "08", "9" * 20])
def test_bad_ports(environment, port):
    host = {"KIMI_HOSTS": "a", "KIMI_HOST_INDEX": "0", "KIMI_PORT": port}
    done = launch("host.sh", environment | host, "true")
    assert done.stderr == f"launch: KIMI_PORT: expected 1 to 65535, found '{port}'\n"


def test_ipv6_hosts(environment, tmp_path):
    host = {"KIMI_HOSTS": "fe80::1,fe80::2,fe80::3,fe80::4", "KIMI_HOST_INDEX": "1"}
    assert launch("host.sh", environment | host, "env").returncode == 0
    found = variables(tmp_path / "logs" / "host-1.log")
    assert found["KIMI_COORDINATOR"] == f"[fe80::1]:{environment['KIMI_PORT']}"
    assert found["TPU_PROCESS_ADDRESSES"].startswith("[fe80::1]:8479,[fe80::2]:8479,")


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/ls"])
def test_a_bad_interpreter_is_refused(environment, tmp_path, python):
    host = {"KIMI_HOSTS": "a", "KIMI_HOST_INDEX": "0", "KIMI_PYTHON": python}
    done = launch("host.sh", environment | host, "kimi", "doctor")
    assert done.returncode == 2
    line = f"setup: KIMI_PYTHON: expected a Python of 3.12 or newer, found '{python}'\n"
    assert (tmp_path / "logs" / "host-0.log").read_text() == line


def test_a_host_that_ssh_cannot_reach(environment, tmp_path):
    fails = executable(tmp_path, "ssh", "#!/bin/bash\necho no route; exit 255\n")
    done = launch("tpu-vm.sh", environment | {"KIMI_HOSTS": "a", "KIMI_SSH": str(fails)}, "true")
    assert done.returncode == 255 and done.stdout == "0| no route\n"
    assert done.stderr.startswith("launch: host 0 (a): exit code 255 (of ssh: look at what it says")


def test_the_preflight_is_not_run_beside_doctor(environment, tmp_path):
    note = executable(
        tmp_path,
        "python",
        f"""#!/bin/bash
        [ "$1" = -c ] && exec {sys.executable} "$@"
        echo "runs $*"
        """,
    )
    host = {"KIMI_HOSTS": "a", "KIMI_HOST_INDEX": "0", "KIMI_PREFLIGHT": "--ranks 32"}
    changed = environment | host | {"KIMI_PYTHON": str(note)}
    assert launch("host.sh", changed, "kimi", "doctor", "--json").stdout.count("runs") == 1
    done = launch("host.sh", changed, "kimi", "inspect").stdout
    assert "runs -m kimi doctor --ranks 32\n" in done and "runs -m kimi inspect\n" in done


@pytest.mark.parametrize("script", ["host.sh", "tpu-vm.sh"])
def test_no_command_and_a_bad_env_file(environment, tmp_path, script):
    assert "COMMAND: expected one, found none" in launch(script, environment).stderr
    file = tmp_path / "bad.env"
    file.write_text("A=1\nnonsense\n")
    done = launch(script, environment | {"KIMI_ENV_FILE": str(file)}, "true")
    assert done.returncode == 2 and f"{file}: line 2: expected NAME=VALUE" in done.stderr


def test_without_gcloud(environment, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    changed = {"KIMI_TPU": "x", "KIMI_ZONE": "z", "PATH": str(tmp_path / "bin")}
    done = launch("tpu-vm.sh", environment | changed, "true")
    assert done.stderr == "launch: KIMI_TPU: expected gcloud on PATH, found none\n"


def test_gcloud(environment, tmp_path):
    """Its two calls, with the arguments that it is called with."""
    calls = tmp_path / "calls"
    executable(
        tmp_path / "bin", "gcloud",
        f"""#!/bin/bash
        echo "$*" >>{calls}
        if [[ $* == *" describe "* ]]; then echo "10.0.0.1;10.0.0.2"; exit; fi
        while [ "$1" != --command ]; do shift; done
        exec env -u KIMI_TPU -u KIMI_ZONE bash -c "$2"
        """,
    )  # fmt: skip
    changed = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "KIMI_TPU": "s",
        "KIMI_ZONE": "z",
    }
    done = launch("tpu-vm.sh", environment | changed, "env")
    assert done.returncode == 0, done.stderr
    first, *others = sorted(calls.read_text().splitlines(), key=lambda c: " ssh " in c)
    assert first.startswith("compute tpus tpu-vm describe s --zone z ")
    for i, call in enumerate(sorted(others)):
        assert call.startswith(f"compute tpus tpu-vm ssh s --zone z --worker {i} --command ")
        assert call.endswith(" -- -tt -o BatchMode=yes")
    found = variables(tmp_path / "logs" / "host-1.log")
    assert found["KIMI_HOSTS"] == "10.0.0.1,10.0.0.2" and "KIMI_TPU" not in found


def test_slurm(environment, tmp_path):
    """`srun` starts the same command in every task, and fails with what one of them fails with."""
    executable(tmp_path / "bin", "scontrol", "#!/bin/bash\nprintf 'n1\\nn2\\nn3\\nn4\\n'\n")
    executable(
        tmp_path / "bin", "srun",
        """#!/bin/bash
        [ "$1 $2" = "--kill-on-bad-exit=1 --label" ] || exit 99
        shift 2
        for i in 0 1 2 3; do SLURM_PROCID=$i "$@" || exit; done
        """,
    )  # fmt: skip
    slurm = {"SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_ID": "5"}
    changed = environment | slurm | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    assert launch("slurm.sbatch", changed, "env").returncode == 0
    found = variables(tmp_path / "logs" / "host-3.log")
    assert found["KIMI_HOSTS"] == "n1,n2,n3,n4" and found["TPU_WORKER_ID"] == "3"
    fails = ["bash", "-c", "exit $((KIMI_HOST_INDEX * 3))"]
    assert launch("slurm.sbatch", changed, *fails).returncode == 3
    text = (LAUNCH / "slurm.sbatch").read_text()
    assert "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n" in text


def test_gke(environment, tmp_path):
    """The manifest asks for the slice, and its pods start what the other launchers start."""
    (document,) = yaml.safe_load_all((LAUNCH / "gke-jobset.yaml").read_text())
    spec = document["spec"]
    (job,) = spec["replicatedJobs"]
    hosts = job["template"]["spec"]
    assert hosts["parallelism"] == hosts["completions"] == 4 and hosts["backoffLimit"] == 0
    assert spec["failurePolicy"]["maxRestarts"] == 0 and hosts["completionMode"] == "Indexed"
    pod = hosts["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x",
        "cloud.google.com/gke-tpu-topology": "2x2x4",
    }
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["google.com/tpu"] == 4
    given = {v["name"]: v["value"] for v in container["env"]}
    name = f"{document['metadata']['name']}-{job['name']}-0"
    domain = spec["network"]["subdomain"]
    assert given["KIMI_HOSTS"].split(",") == [f"{name}-{i}.{domain}" for i in range(4)]
    assert (ROOT / container["args"][0]).exists()
    changed = environment | {"KIMI_HOSTS": given["KIMI_HOSTS"], "JOB_COMPLETION_INDEX": "1"}
    done = waiting.run([*container["command"], "env"], cwd=ROOT, env=changed)
    assert done.returncode == 0
    assert variables(tmp_path / "logs" / "host-1.log")["KIMI_HOST_INDEX"] == "1"


def test_a_host_installs_what_is_missing(environment, tmp_path):
    """Without KIMI_PYTHON; in a checkout whose setup.sh only notes what it was asked for."""
    checkout = tmp_path / "checkout"
    shutil.copytree(LAUNCH, checkout / "scripts" / "launch")
    python = checkout / ".venv" / "bin" / "python"
    (checkout / "scripts" / "setup.sh").write_text(
        f"install_project() {{ echo installs $1; mkdir -p {python.parent}; "
        f"ln -s {sys.executable} {python}; }}\n"
    )
    script = executable(tmp_path, "who.py", "import sys; print(sys.executable)")
    host = {"KIMI_HOSTS": "a", "KIMI_HOST_INDEX": "0"}
    changed = environment | host
    del changed["KIMI_PYTHON"]
    done = waiting.run(["bash", checkout / "scripts/launch/host.sh", script], env=changed)
    assert done.returncode == 0, done.stdout
    assert "installs eval" in done.stdout and str(python) in done.stdout


def test_two_hosts_check_each_other_and_evaluate(environment, tmp_path):
    """The whole path: preflight on both, one program, answers and report on the first alone."""
    out = tmp_path / "answers.jsonl"
    changed = {
        "KIMI_HOSTS": "127.0.0.1,127.0.0.1", "KIMI_PREFLIGHT": f"--disk {tmp_path}",
    }  # fmt: skip
    command = ["eval/gsm8k.py", "--count", 1, "--thinking", "off", "--out", out]
    done = launch("tpu-vm.sh", environment | changed, *command, seconds=60)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = [(tmp_path / "logs" / f"host-{i}.log").read_text() for i in range(2)]
    assert all("s apart over 2 hosts" in log for log in logs)
    assert "flexible  accuracy 1.0000" in logs[0] and "accuracy" not in logs[1]
    assert sum('"job"' in line for line in out.read_text().splitlines()) == 1


@pytest.mark.slow  # minutes of compilation
def test_two_hosts_run_one_kernel(environment, tmp_path):
    """Two ranks on two hosts: the drafted answer is the one that a single device gives."""
    out = tmp_path / "answers.jsonl"
    changed = environment | {"KIMI_HOSTS": "127.0.0.1,127.0.0.1"}
    command = ["eval/gsm8k.py", "--count", 1, "--thinking", "off", "--max-tokens", 80]
    command += ["--backend", "kernel", "--ranks", 2, "--out", out]
    done = launch("tpu-vm.sh", changed, *command, seconds=600)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(out.read_text().splitlines()[-1])
    assert answer["correct"]["flexible"] and answer["finish"] == "stop" and answer["steps"] < 10
    assert answer["response"] == "12 * 11 = 132. 132 - 27 = 105. The answer is 105."


@pytest.mark.slow  # minutes of compilation
def test_two_hosts_benchmark_one_kernel(environment, tmp_path):
    """Both run the same requests and schedules; the first alone reports."""
    out = tmp_path / "benchmark.json"
    changed = environment | {"KIMI_HOSTS": "127.0.0.1,127.0.0.1"}
    command = ["kimi", "benchmark", "--backend", "kernel", "--ranks", 2, "--random-tokens", 4]
    command += ["--requests", 1, "--output-length", 12, "--steps-per-call", 4, "--out", out]
    done = launch("tpu-vm.sh", changed, *command, seconds=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    [request] = found["requests"]
    assert request["drafted"]["output_tokens"] == request["plain"]["output_tokens"] == 12
    logs = [(tmp_path / "logs" / f"host-{i}.log").read_text() for i in range(2)]
    assert "drafted against plain" in logs[0] and "drafted against plain" not in logs[1]


def test_two_hosts_preshard_one_store(environment, tmp_path):
    """Each writes its own ranks; whoever ends last the manifest, and nothing is missing."""
    store = tmp_path / "store"
    changed = environment | {"KIMI_HOSTS": "127.0.0.1,127.0.0.1"}
    command = ["kimi", "preshard", "--model", TINY_K3, "--mesh", 2, "--experts", "mxfp4"]
    done = launch("tpu-vm.sh", changed, *command, "--out", store, seconds=60)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = [(tmp_path / "logs" / f"host-{i}.log").read_text() for i in range(2)]
    shares = [f"share {i} of 2 is written" in log for i, log in enumerate(logs)]
    wholes = ["TP2" in log for log in logs]  # two of them, if both end at once
    assert all(share != whole for share, whole in zip(shares, wholes, strict=True)), logs
    assert any(wholes)
    verify = [sys.executable, "-m", "kimi", "preshard", "--out", store, "--verify"]
    checked = waiting.run(verify, 20, env=environment, cwd=ROOT)
    assert checked.returncode == 0, checked.stderr


def test_a_failed_preflight_is_the_end(environment, tmp_path):
    host = {"KIMI_HOSTS": "a", "KIMI_HOST_INDEX": "0", "KIMI_PREFLIGHT": "--ranks 32"}
    mark = tmp_path / "ran"
    done = launch("host.sh", environment | host, "touch", mark)
    assert done.returncode == 2 and not mark.exists()
    log = (tmp_path / "logs" / "host-0.log").read_text()
    assert "FAILED devices" in log and "checks failed: devices" in log


def test_the_instructions_name_every_variable():
    """Those that the scripts read and do not set themselves, and nothing else."""
    text = "".join(file.read_text() for file in [*LAUNCH.glob("*.sh"), ROOT / "scripts/setup.sh"])
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    known = set(re.findall(r"KIMI_[A-Z_]+", code)) - {"KIMI_ROOT"} | {"KIMI_JOIN_SECONDS"}
    assert set(re.findall(r"KIMI_[A-Z_]+", (LAUNCH / "README.md").read_text())) == known
