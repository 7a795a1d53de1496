"""Ray Serve deploys replicas of `kjit serve`, more of them under load.

    pip install 'ray[serve]' httpx
    MODEL=model.gguf serve run kjit_ray:app
    curl localhost:8000/v1/completions -d '{"prompt": "The sky is", "max_tokens": 8}'

PROGRAM is the program (kjit), FLAGS more flags, REPLICAS "least,most" (1,4). A replica starts its server on
a free port. If the server ends, the replica starts it again, and repeats requests that had no answer yet.
"""
import asyncio
import os
import re
import shlex

import httpx
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

LEAST, MOST = (int(n) for n in os.environ.get("REPLICAS", "1,4").split(","))
COMMAND = [os.environ.get("PROGRAM", "kjit"), "serve", os.environ["MODEL"], "--port", "0",
           *shlex.split(os.environ.get("FLAGS", ""))]
# Headers of one connection only.
HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


@serve.deployment(
    # kjit queues and batches requests itself: a replica takes more than it computes at once.
    max_ongoing_requests=64,
    autoscaling_config={"min_replicas": LEAST, "max_replicas": MOST, "target_ongoing_requests": 8},
    health_check_period_s=5,
)
class Kjit:
    def __init__(self):
        self.process = self.client = None
        self.starting = asyncio.Lock()

    async def start(self):
        """Starts the server if it does not run, and waits until it is ready."""
        async with self.starting:
            if self.process and self.process.returncode is None:
                return
            self.process = await asyncio.create_subprocess_exec(*COMMAND, stderr=asyncio.subprocess.PIPE)
            while line := (await self.process.stderr.readline()).decode():
                # The address that the server chose, printed when the model is loaded.
                if found := re.match(r"serving .* on (http://[^ :]+:\d+)", line):
                    self.client = httpx.AsyncClient(base_url=found[1], timeout=None)
                    self.reader = asyncio.create_task(self.drain(self.process.stderr))
                    return
            raise RuntimeError("kjit serve does not start: " + " ".join(COMMAND))

    @staticmethod
    async def drain(stream):
        """Reads what the server prints: a full pipe would stop it."""
        while line := await stream.readline():
            print("kjit:", line.decode().rstrip(), flush=True)

    async def check_health(self):
        await self.start()
        (await self.client.get("/livez")).raise_for_status()

    async def __call__(self, request: Request):
        body = await request.body()
        url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = {name: value for name, value in request.headers.items() if name not in HOP}
        for attempt in range(3):
            await self.start()
            try:
                ask = self.client.build_request(request.method, url, content=body, headers=headers)
                answer = await self.client.send(ask, stream=True)
                if "text/event-stream" in answer.headers.get("content-type", ""):
                    chunks = answer.aiter_raw()
                else:
                    # A short answer is read before it is passed on, so that it can be repeated.
                    whole = await answer.aread()

                    async def chunks_of_whole():
                        yield whole
                    chunks = chunks_of_whole()
                kept = {name: value for name, value in answer.headers.items() if name not in HOP}
                return StreamingResponse(chunks, answer.status_code, kept)
            except httpx.TransportError:
                # The server ended: its process is reaped in a moment.
                await asyncio.sleep(1)
        raise RuntimeError("kjit serve ended three times during a request")

    def __del__(self):
        if self.process and self.process.returncode is None:
            self.process.terminate()


app = Kjit.bind()
