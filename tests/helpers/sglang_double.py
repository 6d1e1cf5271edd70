# SPDX-License-Identifier: Apache-2.0
"""A stand-in for an SGLang server (0.5): its protocol and its failures, over a model that fits a test.

Log-probabilities are those of the served weights, tokens are scripted: the same prompts get the same completions. As a
command, `python tests/helpers/sglang_double.py MODEL_DIR PORT` serves a folder until it is ended; `POST /refuse_next
{"path", "status", "body"}` says what it refuses next.
"""

import json
import os
import random
import socket
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d
from transformers import AutoModelForCausalLM  # and nothing of the package, so that a server starts soon

EOS = 2
LOADING = threading.Lock()  # from_pretrained changes global state while it loads
CONTEXT = 512
CONTROL = {
    "/update_weights_from_disk",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/begin_weight_update",
    "/update_weights_from_distributed",
    "/end_weight_update",
    "/flush_cache",
    "/release_memory_occupation",
    "/resume_memory_occupation",
}
SAMPLING = {
    "n", "max_new_tokens", "temperature", "stop_token_ids", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "min_new_tokens", "ignore_eos", "logit_bias",
}  # fmt: skip


class Refusal(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, body: dict):
        self.status, self.body = status, body


class Dropped(Exception):
    """No answer: the connection is closed."""


# Faults, for SGLangDouble.next


def answers(status: int, body: dict) -> Callable:
    def fault(answer):
        raise Refusal(status, body)

    return fault


def drops(answer):
    raise Dropped


def takes(seconds: float) -> Callable:
    def fault(answer):
        time.sleep(seconds)
        return answer()

    return fault


def changes(change: Callable) -> Callable:
    """Answers what `change` makes of the right answer."""

    def fault(answer):
        return change(answer())

    return fault


def aborts(count: int) -> Callable:
    """The first `count` completions end early, as after a pause with mode `abort`."""

    def abort(items):
        for item in items[:count]:
            item["output_ids"] = item["output_ids"][:1]
            item["meta_info"]["output_token_logprobs"] = item["meta_info"]["output_token_logprobs"][:1]
            item["meta_info"]["finish_reason"] = {"type": "abort", "message": "Aborted by the test."}
        return items

    return changes(abort)


def load(folder):
    with LOADING:
        return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


class SGLangDouble:
    """Serves a folder; `next(path, fault)` says what happens to the coming requests of a path.

    Attributes:
        requests (`dict[str, list]`): Payloads by path, in the order of arrival.
        versions (`list[str]`): Names of weights taken since the last start.
        starts (`int`): How often it was started.
    """

    def __init__(self, folder, api_key=None, admin_key=None, port=0, original_logprobs=False, longest=6):
        self.folder, self.api_key, self.admin_key = folder, api_key, admin_key
        self.original_logprobs, self.longest = original_logprobs, longest
        self.architectures: list[str] | None = None
        self.memory_saver = True
        self.calls: list[str] = []
        self.context = CONTEXT
        self.faults: dict[str, deque] = defaultdict(deque)
        self.requests: dict[str, list] = defaultdict(list)
        self.port, self.starts = port, 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def next(self, path: str, *faults: Callable) -> None:
        self.faults[path].extend(faults)

    def start(self) -> None:
        """Starts, or starts again with the weights of the folder."""
        self.starts += 1
        self.model = load(self.folder)
        self.version, self.versions, self.in_session = "v0", [], False
        self.cache: list[list[int]] = []
        self.groups, self.lock = {}, threading.Lock()
        self.released: set[str] = set()
        self.connections: set[socket.socket] = set()
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), make_handler(self))
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Goes away in the middle of whatever it does."""
        self.server.shutdown()
        self.server.server_close()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client was faster

    def answer(self, path: str, payload: dict | None, key: str | None):
        self._authorize(path, key)
        if payload is not None:
            self.requests[path].append(payload)
            self.calls.append(" ".join([path.strip("/"), *payload.get("tags", ())]))
        handle = getattr(self, path.strip("/").replace("/", "_"), None)
        if handle is None:
            raise Refusal(404, {"detail": "Not Found"})
        right = (lambda: handle(payload)) if payload is not None else handle
        fault = self.faults[path].popleft() if self.faults[path] else None
        return fault(right) if fault else right()

    def _authorize(self, path: str, key: str | None) -> None:
        if path == "/health":
            return
        needed = self.admin_key if path in CONTROL and self.admin_key else self.api_key
        if needed and key != f"Bearer {needed}":
            raise Refusal(401, {"error": "Unauthorized"})

    def refuse_next(self, payload):
        self.next(payload["path"], answers(payload["status"], payload["body"]))
        return {}

    # What it answers

    def health(self):
        return ""

    def model_info(self):
        return {
            "model_path": str(self.folder),
            "is_generation": True,
            "weight_version": self.version,
            "architectures": self.architectures or self.model.config.architectures or [type(self.model).__name__],
        }

    def server_info(self):
        return {
            "tp_size": 1,
            "max_total_num_tokens": 8192,
            "enable_deterministic_inference": False,
            "enable_memory_saver": self.memory_saver,
        }

    def v1_models(self):
        return {"object": "list", "data": [{"id": str(self.folder), "max_model_len": self.context}]}

    def flush_cache(self, payload):
        self.cache = []
        return "Cache flushed."

    def release_memory_occupation(self, payload):
        """The memory of weights is lost: what is in it afterwards is arbitrary."""
        self.released |= set(payload["tags"])
        if "weights" in self.released:
            with self.lock, torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.fill_(float("nan"))

    def resume_memory_occupation(self, payload):
        if not set(payload["tags"]) <= self.released:
            self._die()
        self.released -= set(payload["tags"])

    def _die(self):
        """As the real one, whose scheduler ends by a failed assertion or an illegal access."""
        threading.Thread(target=self.stop).start()
        raise Dropped

    def generate(self, payload):
        if self.released:
            self._die()
        sampling, vocab_size = payload.get("sampling_params", {}), self.model.config.vocab_size
        if unknown := set(sampling) - SAMPLING:
            raise Refusal(400, {"error": f"unknown field {unknown.pop()!r}"})
        if any(not 0 <= int(token) < vocab_size for token in sampling.get("logit_bias", {})):
            raise Refusal(400, {"error": {"message": f"logit_bias must has keys in [0, {vocab_size - 1}]"}})
        is_batch = isinstance(payload["input_ids"][0], list)
        prompts = payload["input_ids"] if is_batch else [payload["input_ids"]]
        if any(not 0 <= token < vocab_size for prompt in prompts for token in prompt):
            self._die()
        limit, count = sampling.get("max_new_tokens", 128), sampling.get("n", 1)
        if max(map(len, prompts)) + limit > self.context:
            raise Refusal(400, {"error": {"message": "Requested token count exceeds the model's context"}})
        with self.lock:
            items = [self._complete(prompt, number, sampling, limit) for prompt in prompts for number in range(count)]
            if payload.get("top_logprobs_num"):
                owners = [prompt for prompt in prompts for _ in range(count)]
                for prompt, item in zip(owners, items, strict=True):
                    self._add_top(prompt, item, sampling, payload["top_logprobs_num"])
        return items if is_batch or count > 1 else items[0]

    def _complete(self, prompt, number, sampling, limit):
        rng = random.Random(f"{prompt} {number}")
        ids = [rng.randrange(3, self.model.config.vocab_size) for _ in range(rng.randint(1, min(limit, self.longest)))]
        if sampling.get("top_k", -1) > 0:
            ids = self._from_top(prompt, limit, sampling, rng)
        stops = {EOS, *sampling.get("stop_token_ids", ())}
        ids = [*ids, EOS][:limit]
        end = next((place for place, token in enumerate(ids) if token in stops), None)
        ids = ids[: limit if end is None else end + 1]
        # How much of the prompt it has computed before; the last token is always computed again.
        cached = max(len(os.path.commonprefix([known, prompt[:-1]])) for known in ([], *self.cache))
        self.cache.append([*prompt, *ids[:-1]])
        reason = {"type": "length", "length": limit} if end is None else {"type": "stop", "matched": ids[-1]}
        return {
            "text": "",
            "output_ids": ids,
            "meta_info": {
                "finish_reason": reason,
                "weight_version": self.version,
                "weight_versions": [{"version": self.version, "start": 0, "end": len(ids)}],
                "prompt_tokens": len(prompt),
                "completion_tokens": len(ids),
                "cached_tokens": cached,
                "output_token_logprobs": [[logp, token, None] for logp, token in self._scored(prompt, ids, sampling)],
            },
        }

    def _from_top(self, prompt, limit, sampling, rng):
        ids, stops = [], {EOS, *sampling["stop_token_ids"]}
        while len(ids) < limit and not stops.intersection(ids):
            with torch.no_grad():
                logits = self.model(torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, -1]
            ids.append(rng.choice(logits.topk(sampling["top_k"]).indices.tolist()))
        return ids

    def _add_top(self, prompt, item, sampling, count):
        logps = self._all_logps(prompt, item["output_ids"], sampling)
        item["meta_info"]["output_top_logprobs"] = [
            [[logp, token, None] for logp, token in zip(*(each.tolist() for each in row.topk(count)), strict=True)]
            for row in logps
        ]

    def _scored(self, prompt, ids, sampling):
        logps = self._all_logps(prompt, ids, sampling).gather(1, torch.tensor(ids)[:, None]).squeeze(1)
        return zip(logps.tolist(), ids, strict=True)

    def _all_logps(self, prompt, ids, sampling):
        temperature = 1.0 if self.original_logprobs else sampling.get("temperature") or 1.0
        with torch.no_grad():
            logits = self.model(torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        return (logits / temperature).log_softmax(dim=-1)

    def update_weights_from_disk(self, payload):
        if "weights" in self.released:
            self._die()
        folder = Path(payload["model_path"])
        if not (folder / "model.safetensors").exists():
            raise Refusal(400, {"success": False, "message": f"Failed to get weights iterator: {folder}."})
        with self.lock:
            self.model = load(folder)
            self._name(payload)
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    def _name(self, payload):
        self.cache = []
        if payload.get("weight_version") is not None:
            self.version = payload["weight_version"]
            self.versions.append(self.version)

    def begin_weight_update(self, payload):
        if self.in_session:
            raise Refusal(400, {"success": False, "message": "a weight-update session is already open"})
        self.in_session = True
        return {"success": True, "message": "Success"}

    def end_weight_update(self, payload):
        if not self.in_session:
            raise Refusal(400, {"success": False, "message": "no weight-update session is open"})
        self.in_session = False
        return {"success": True, "message": "Success"}

    def init_weights_update_group(self, payload):
        name, world, rank = payload["group_name"], payload["world_size"], payload["rank_offset"]
        address, timeout = (payload["master_address"], payload["master_port"]), timedelta(seconds=30)
        store = dist.PrefixStore(name, dist.TCPStore(*address, world, False, timeout))
        link, _ = c10d._new_process_group_helper(
            world, rank, [], dist.Backend(payload["backend"]), store, group_name=name, timeout=timeout
        )
        c10d._world.pg_group_ranks[link] = {number: number for number in range(world)}
        self.groups[name] = link
        return {"success": True, "message": "Succeeded to initialize custom process group."}

    def destroy_weights_update_group(self, payload):
        if payload["group_name"] not in self.groups:
            raise Refusal(400, {"success": False, "message": "The group to be destroyed does not exist."})
        dist.destroy_process_group(self.groups.pop(payload["group_name"]))
        return {"success": True, "message": "Succeeded to destroy custom process group."}

    def update_weights_from_distributed(self, payload):
        if not self.in_session:
            raise Refusal(400, {"success": False, "message": "update_weights_from_distributed must run between ..."})
        if "weights" in self.released:
            self._die()
        received = {}
        for name, dtype, shape in zip(payload["names"], payload["dtypes"], payload["shapes"], strict=True):
            received[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            self.groups[payload["group_name"]].broadcast(received[name], 0).wait()
        with self.lock:
            unknown = self.model.load_state_dict(received, strict=False).unexpected_keys
            self._name(payload)
        if unknown:
            raise Refusal(400, {"success": False, "message": f"Failed to update parameter online: {unknown}."})
        return {"success": True, "message": "Succeeded to update parameter online."}


def make_handler(double: SGLangDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            super().setup()
            double.connections.add(self.connection)

        def finish(self):
            double.connections.discard(self.connection)
            super().finish()

        def do_GET(self):
            self._respond(None)

        def do_POST(self):
            self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _respond(self, payload):
            try:
                status, body = 200, double.answer(self.path, payload, self.headers.get("Authorization"))
            except Refusal as refusal:
                status, body = refusal.status, refusal.body
            except Dropped:
                self.close_connection = True
                return
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            """Says nothing."""

        def handle(self):
            try:
                super().handle()
            except OSError:
                self.close_connection = True  # the client, or stop(), was faster

    return Handler


if __name__ == "__main__":
    double = SGLangDouble(sys.argv[1], port=int(sys.argv[2]))
    threading.Event().wait()
