"""A router in front of two servers on the CPU: 200 requests, one server killed in the midst.

fleet.py sglang|litellm|ray KJIT MODEL, with the router's packages in PYTHONPATH. No request may be lost
that had not begun when the server was killed. With ray, examples/ray starts the servers.
"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

router, kjit, model = sys.argv[1:]
REQUESTS, THREADS, KILL_AFTER = 200, 8, 60
# LiteLLM demands a key.
KEY = "sk-test-0123456789abcdef0123456789abcdef"
processes = []
folder = pathlib.Path(tempfile.mkdtemp())


def start(name, command, **environment):
    log = open(folder / f"{name}.log", "wb")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                               env=os.environ | environment)
    processes.append(process)
    return process


def log(name):
    return (folder / f"{name}.log").read_text(errors="replace")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url, body=None, timeout=120):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout) as answer:
        return answer.read()


def wait(what, ready, seconds=180):
    until = time.time() + seconds
    while time.time() < until:
        try:
            if ready():
                return
        except (OSError, urllib.error.URLError):
            pass
        if any(p.poll() is not None for p in processes):
            break
        time.sleep(1)
    raise SystemExit(f"{what} does not start:\n" + "\n".join(log(p.stem) for p in folder.glob("*.log"))[-6000:])


def server(name):
    flags = ["--alias", "m", "--port", "0", "--device", "cpu", "-c", "512", "--threads", "1"]
    process = start(name, [kjit, "serve", model, *flags])
    found = []

    def ready():
        found[:] = re.findall(r"serving .*?http://127\.0\.0\.1:(\d+)", log(name))
        return bool(found)
    wait(name, ready)
    return process, f"http://127.0.0.1:{found[0]}"


def sglang(urls, port):
    start("router", [sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", *urls, "--policy",
                     "round_robin", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()),
                     "--health-check-interval-secs", "2", "--health-failure-threshold", "1"])
    return ["/v1/completions", "/v1/chat/completions", "/generate"]


def litellm(urls, port):
    models = [{"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": f"{url}/v1", "api_key": "none"}}
              for url in urls]
    retries = {"num_retries": 3, "allowed_fails": 1, "cooldown_time": 30}
    settings = {"model_list": models, "router_settings": retries, "general_settings": {"master_key": KEY}}
    config = folder / "litellm.yaml"
    # JSON is YAML, too.
    config.write_text(json.dumps(settings))
    run = "import sys; from litellm.proxy.proxy_cli import run_server; run_server()"
    start("router", [sys.executable, "-c", run, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)])
    return ["/v1/completions", "/v1/chat/completions"]


def ray(name, port):
    example = pathlib.Path(__file__).resolve().parents[3] / "examples" / "ray"
    run = ("import ray, time; from ray import serve; import kjit_ray; "
           f"ray.init(include_dashboard=False, num_cpus=4); serve.start(http_options={{'port': {port}}}); "
           "serve.run(kjit_ray.app); time.sleep(3600)")
    flags = f"--alias m --alias {name} --device cpu -c 512 --threads 1"
    path = os.pathsep.join([str(example), os.environ.get("PYTHONPATH", "")])
    start("router", [sys.executable, "-c", run], PROGRAM=kjit, MODEL=model, FLAGS=flags, REPLICAS="2,2",
          PYTHONPATH=path, RAY_USAGE_STATS_ENABLED="0")
    return ["/v1/completions", "/v1/chat/completions"]


def servers_named(name):
    """Processes of servers with this alias."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if name.encode() in words and b"serve" in words:
            found.append(int(process.name))
    return sorted(found)


BODIES = {
    "/v1/completions": lambda text: {"model": "m", "prompt": text, "max_tokens": 4, "temperature": 0},
    "/v1/chat/completions": lambda text: {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 4},
    "/generate": lambda text: {"text": text, "sampling_params": {"max_new_tokens": 4, "temperature": 0}},
}


def answered(path, document):
    if path == "/generate":
        return document["meta_info"]["completion_tokens"] == 4
    return document["usage"]["completion_tokens"] in range(1, 5)


def main():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    if router == "ray":
        name = f"fleet-{port}"
        paths = ray(name, port)
        wait("the router", lambda: get(url + "/health", timeout=30) and len(servers_named(name)) == 2)
        doomed, first, second = servers_named(name)[0], None, None
    else:
        process, first = server("first")
        doomed = process.pid
        _, second = server("second")
        paths = {"sglang": sglang, "litellm": litellm}[router]([first, second], port)
    probe = paths[0]
    wait("the router", lambda: get(url + probe, BODIES[probe]("Hi"), 30))
    lock, numbers, begun, done, failed = threading.Lock(), iter(range(REQUESTS)), {}, {}, {}
    killed = {}

    def work():
        while True:
            with lock:
                number = next(numbers, None)
                if number is None:
                    return
                begun[number] = time.monotonic()
            path = paths[number % len(paths)]
            try:
                document = json.loads(get(url + path, BODIES[path](f"Number {number} is")))
                assert answered(path, document), document
                with lock:
                    done[number] = time.monotonic()
            except Exception as error:
                with lock:
                    failed[number] = repr(error)[:300]
            with lock:
                if len(done) >= KILL_AFTER and not killed:
                    served = first and requests_of(first)
                    os.kill(doomed, signal.SIGKILL)
                    killed.update(at=time.monotonic(), served=served)
                    processes[:] = [p for p in processes if p.pid != doomed]
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(done) + len(failed) == REQUESTS and killed, (len(done), failed)
    late = {n: why for n, why in failed.items() if begun[n] > killed["at"]}
    assert not late, f"lost, but not begun when the server was killed: {late}"
    assert len(failed) <= THREADS, failed
    print(f"{router}: {len(done)} of {REQUESTS} answered, {len(failed)} lost that had begun")
    if router == "ray":
        assert len(servers_named(name)) == 2, "the killed server is not started again"
        return
    # Both servers had a share.
    assert killed["served"] > 10 and requests_of(second) > REQUESTS // 2, (killed, requests_of(second))
    print(f"first server {killed['served']}, second {requests_of(second)}")


def requests_of(url):
    text = get(url + "/metrics").decode()
    lines = re.findall(r'^kjit_http_answers_total\{route="/(?:v1/(?:chat/)?completions|generate)",status="200"\} (\d+)', text, re.M)
    return sum(int(n) for n in lines)


try:
    main()
finally:
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
    deadline = time.time() + 15
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.time()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
