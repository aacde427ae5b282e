"""llama.cpp's server with a slot a request, inside this process by xllamacpp; asked over the loopback interface."""

from __future__ import annotations

import http.client
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from protocol import Answer, Peer, Requests, serve

SLOTS, SLOT_TOKENS = 48, 512  # one for every request of workload.py, and no less than its longest prompt and answer


def load(model: str, threads: int) -> Peer:
    # Its threads meet at a barrier after every operation; where cores are shared, spinning there takes the time of the
    # thread that is waited for. On a quiet machine it made no difference (four requests, 12.6 to 15.0 s, n = 2 each).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xllamacpp  # pyright: ignore[reportMissingImports]

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * SLOT_TOKENS
    params.fit_params = False  # it would choose another context by free memory
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_threads_http = SLOTS + 4
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    # Its flash attention converts the fp32 keys and values of all slots to fp16 in every step: a fifth of the time, and
    # less exact. Without it they are used as they are, as fast as flash attention on an fp16 cache.
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE  # weights in memory of its own, as the others'
    # What an earlier run left behind would make this one faster. Slots share no prefix among themselves anyway.
    params.cache_prompt, params.cache_ram_mib = False, 0
    server = xllamacpp.Server(params)

    def ask(request: tuple[list[int], int]) -> tuple[list[int], list[float]]:
        prompt, count = request
        body = {
            "prompt": prompt,
            "n_predict": count,
            "ignore_eos": True,
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
        }
        address = urlsplit(server.listening_address)  # asked for here, since the server ends with its last reference
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(response.read().decode("utf-8", "replace"))
        tokens: list[int] = []
        times: list[float] = []
        for line in response:
            if line.startswith(b"data: {"):
                new = json.loads(line[6:]).get("tokens", [])
                tokens += new
                times += [time.perf_counter()] * len(new)
        connection.close()
        return tokens, times

    def run(requests: Requests) -> Answer:
        start = time.perf_counter()
        with ThreadPoolExecutor(SLOTS) as pool:
            answers = list(pool.map(ask, requests))
        return Answer(start, [tokens for tokens, _ in answers], [times for _, times in answers])

    instructions = "AVX-512" if "AVX512 = 1" in xllamacpp.get_system_info() else "built without AVX-512"
    setting = f"fp32 weights and KV memory, {SLOTS} slots of {SLOT_TOKENS} tokens, {instructions}"
    return Peer(f"xllamacpp {xllamacpp.__version__}", setting, run)


if __name__ == "__main__":
    serve(load)
