"""Codex CLI, unmodified, with a server.

codex.py CODEX HTTP: CODEX is the program of the npm package @openai/codex.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

codex, http = sys.argv[1:]
folder = pathlib.Path(tempfile.mkdtemp())
home, work = folder / "home", folder / "work"
home.mkdir()
work.mkdir()
(home / "config.toml").write_text(f"""model = "m"
model_provider = "kjit"
[model_providers.kjit]
name = "kjit"
base_url = "{http}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
""")
command = [codex, "exec", "--skip-git-repo-check", "--json", "--output-last-message", str(folder / "last"), "Say hi."]
done = subprocess.run(command, cwd=work, env=os.environ | {"CODEX_HOME": str(home)}, stdin=subprocess.DEVNULL,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=240)
assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
answer = (folder / "last").read_text()
assert answer.strip() and '"turn.completed"' in done.stdout, done.stdout[-3000:]
version = subprocess.run([codex, "--version"], stdout=subprocess.PIPE, text=True).stdout.strip()
print(version, repr(answer[:80]))
