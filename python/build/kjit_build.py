"""Builds the wheel: ``kjit-cc``, in which compilers run, then the library by maturin.

``KJIT_WHEEL_PROFILE`` names another cargo profile than ``release``: ``dev`` for a quick try.
"""

import json
import os
import shutil
import subprocess

import maturin

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROFILE = os.environ.get("KJIT_WHEEL_PROFILE", "release")

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel


def _compiler_process():
    """Builds ``kjit-cc`` and copies it into the package."""
    command = ["cargo", "build", "--profile", PROFILE, "-p", "kjit-engine", "--bin", "kjit-cc"]
    told = subprocess.run(
        [*command, "--message-format", "json-render-diagnostics"],
        cwd=HERE,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    made = [json.loads(line).get("executable") for line in told.splitlines()]
    program = next(path for path in reversed(made) if path)
    target = os.path.join(HERE, "kjit", "kjit-cc")
    shutil.copyfile(program, target)
    subprocess.run(["strip", target], check=False, stderr=subprocess.DEVNULL)
    os.chmod(target, 0o755)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517's hook."""
    _compiler_process()
    settings = dict(config_settings or {})
    settings.setdefault("build-args", f"--profile {PROFILE}")
    return maturin.build_wheel(wheel_directory, settings, metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """PEP 517's hook."""
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
