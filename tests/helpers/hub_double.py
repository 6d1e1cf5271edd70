# SPDX-License-Identifier: Apache-2.0
"""A small Hub on loopback: as much of its HTTP interface as uploading and loading models takes.

Repositories are dictionaries from path to content; every commit replaces what it names. Large files come by the LFS
protocol, whose storage is this server too.
"""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class HubDouble:
    """Serves while the context lasts.

    Attributes:
        url (`str`): The endpoint (`HF_ENDPOINT`).
        repos (`dict[str, dict[str, bytes]]`): Files by repository.
        tokens (`set[str]`): Tokens that writing requests carried.
    """

    def __init__(self, user: str = "tester"):
        self.user = user
        self.repos: dict[str, dict[str, bytes]] = {}
        self.messages: list[str] = []
        self.tokens: set[str] = set()
        self._objects: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HubDouble":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(hub):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def body(self) -> bytes:
                length = self.headers.get("Content-Length")
                if length is not None:
                    return self.rfile.read(int(length))
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return b""
                content = b""
                while size := int(self.rfile.readline(), 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return content

            def answer(self, content, status: int = 200, headers: dict | None = None) -> None:
                content = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def missing(self, code: str) -> None:
                self.answer({"error": "not found"}, 404, {"X-Error-Code": code})

            def do_POST(self):
                path, body = unquote(urlsplit(self.path).path), self.body()
                hub.tokens.add(self.headers.get("Authorization", "").removeprefix("Bearer "))
                if path == "/api/repos/create":
                    request = json.loads(body)
                    repo = f"{request.get('organization') or hub.user}/{request['name']}"
                    hub.repos.setdefault(repo, {})
                    self.answer({"url": f"{hub.url}/{repo}", "id": repo, "name": repo})
                elif path == "/api/validate-yaml":
                    self.answer({"errors": [], "warnings": []})
                elif "/preupload/" in path:
                    files = json.loads(body)["files"]
                    large = (".safetensors", ".bin", ".pt", ".pth", ".png")
                    modes = [
                        {
                            "path": file["path"],
                            "uploadMode": "lfs" if file["path"].endswith(large) else "regular",
                            "shouldIgnore": False,
                        }
                        for file in files
                    ]
                    self.answer({"files": modes})
                elif path.endswith("/info/lfs/objects/batch"):
                    objects = [
                        {
                            "oid": item["oid"],
                            "size": item["size"],
                            "actions": {"upload": {"href": f"{hub.url}/lfs/{item['oid']}", "header": {}}},
                        }
                        for item in json.loads(body)["objects"]
                    ]
                    self.answer({"transfer": "basic", "objects": objects})
                elif "/commit/" in path:
                    repo = path.split("/api/models/")[1].split("/commit/")[0]
                    hub._commit(repo, body)
                    self.answer({"commitUrl": f"{hub.url}/{repo}/commit/{'0' * 40}", "commitOid": "0" * 40})
                else:
                    self.missing("RepoNotFound")

            def do_PUT(self):
                content = self.body()
                hub._objects[hashlib.sha256(content).hexdigest()] = content
                self.answer(b"")

            def do_GET(self):
                path = unquote(urlsplit(self.path).path)
                if path.startswith("/api/whoami"):
                    self.answer({"name": hub.user, "type": "user", "orgs": []})
                elif path.startswith("/api/models/"):
                    self.info(path.removeprefix("/api/models/"))
                elif "/resolve/" in path:
                    repo, _, rest = path.strip("/").partition("/resolve/")
                    content = hub.repos.get(repo, {}).get(rest.partition("/")[2])
                    if content is None:
                        self.missing("EntryNotFound" if repo in hub.repos else "RepoNotFound")
                    else:
                        etag = hashlib.sha256(content).hexdigest()
                        self.answer(content, headers={"ETag": f'"{etag}"', "X-Repo-Commit": "0" * 40})
                else:
                    self.missing("RepoNotFound")

            do_HEAD = do_GET

            def info(self, path: str) -> None:
                repo = "/".join(path.split("/")[:2])
                if repo not in hub.repos:
                    self.missing("RepoNotFound")
                    return
                files = hub.repos[repo]
                if "/tree/" in path:
                    folder = path.partition("/tree/")[2].partition("/")[2]
                    self.answer(
                        [
                            {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                            for name, content in files.items()
                            if name.startswith(folder)
                        ]
                    )
                else:
                    self.answer({"id": repo, "sha": "0" * 40, "siblings": [{"rfilename": name} for name in files]})

        return Handler

    def _commit(self, repo: str, body: bytes) -> None:
        files = self.repos.setdefault(repo, {})
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                self.messages.append(value["summary"])
            elif item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files[value["path"]] = self._objects[value["oid"]]
            elif item["key"] == "deletedFile":
                files.pop(value["path"], None)
