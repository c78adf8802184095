"""A small Hugging Face hub in this process: repositories of models and data sets with commits, tokens, LFS uploads.

It implements the endpoints that huggingface_hub and datasets request; HF_ENDPOINT directs programs to it.
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlparse

import yaml

TOKEN = "hf_of_a_test"


class Hub:
    """`with Hub() as hub: hub.endpoint`; `repos` holds "models/o/n": {"private", "commits": [(oid, {path: bytes})]}."""

    def __init__(self):
        self.repos, self.blobs, self.requested = {}, {}, []

    def __enter__(self):
        hub = self

        class HubHandler(Handler):
            shared = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def commit(self, name, files, private=False):
        """A new commit that holds these files and those of the one before; its id."""
        repo = self.repos.setdefault(name, {"private": private, "commits": []})
        old = repo["commits"][-1][1] if repo["commits"] else {}
        content = {**old, **files}
        digest = hashlib.sha1(repr((name, len(repo["commits"]), sorted(content.items()))).encode()).hexdigest()
        repo["commits"].append((digest, content))
        return digest

    def at(self, name, revision):
        """(commit, files) of a revision; None where there is none."""
        commits = self.repos[name]["commits"]
        if revision == "main":
            return commits[-1] if commits else ("0" * 40, {})
        return next((each for each in commits if each[0] == revision), None)


class Handler(BaseHTTPRequestHandler):
    shared: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.respond("GET")

    def do_HEAD(self):
        self.respond("HEAD")

    def do_POST(self):
        self.respond("POST")

    def do_PUT(self):
        self.respond("PUT")

    def respond(self, method):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlparse(self.path)
        self.shared.requested.append(f"{method} {url.path}")
        self.query = parse_qs(url.query)
        routes = [
            ("POST", r"/api/repos/create", self.create),
            ("POST", r"/api/validate-yaml", self.validate),
            ("GET", r"/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/([^/]+))?", self.info),
            ("GET", r"/api/(models|datasets)/([^/]+/[^/]+)/tree/([^/]+)/?(.*)", self.tree),
            ("POST", r"/api/(models|datasets)/([^/]+/[^/]+)/paths-info/([^/]+)", self.paths),
            ("POST", r"/api/(models)/([^/]+/[^/]+)/preupload/([^/]+)", self.preupload),
            ("POST", r"/api/(models)/([^/]+/[^/]+)/commit/([^/]+)", self.commit),
            ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", self.lfs),
            ("PUT", r"/blobs/([0-9a-f]+)", self.put_blob),
            ("GET", r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.resolve),
        ]
        for accepted, pattern, handle in routes:
            found = re.fullmatch(pattern, unquote(url.path))
            if found and accepted == ("GET" if method == "HEAD" else method):
                return handle(*found.groups())
        return self.error(404, "EntryNotFound")

    def send(self, status, content=b"", **headers):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def error(self, status, code):
        self.send(status, {"error": code}, X_Error_Code=code, X_Error_Message=code)

    @property
    def known(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def repo(self, kind, name, revision):
        """(key, commit, files), or None after an error was sent."""
        key = f"{kind}/{name}"
        if key not in self.shared.repos or (self.shared.repos[key]["private"] and not self.known):
            return self.error(404 if self.known else 401, "RepoNotFound")
        found = self.shared.at(key, revision or "main")
        return (key, *found) if found else self.error(404, "RevisionNotFound")

    def info(self, kind, name, revision):
        if found := self.repo(kind, name, revision):
            key, commit, files = found
            siblings = [{"rfilename": path} for path in files]
            values = {"id": name, "modelId": name, "sha": commit, "private": self.shared.repos[key]["private"],
                      "tags": [], "downloads": 0, "likes": 0, "siblings": siblings}
            self.send(200, values, Content_Type="application/json")

    def described(self, path, content):
        return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def tree(self, kind, name, revision, folder):
        if found := self.repo(kind, name, revision):
            files = {p: c for p, c in found[2].items() if not folder or p.startswith(f"{folder}/")}
            deep = self.query.get("recursive", ["False"])[0] in ("True", "true", "1")
            depth = folder.count("/") + 1 if folder else 0
            folders = {"/".join(p.split("/")[: depth + 1]) for p in files if p.count("/") > depth}
            shown = [self.described(p, c) for p, c in files.items() if deep or p.count("/") == depth]
            shown += [{"type": "directory", "path": p, "oid": "0" * 40, "size": 0} for p in sorted(folders)]
            if folder and not files:
                return self.error(404, "EntryNotFound")
            self.send(200, shown, Content_Type="application/json")

    def paths(self, kind, name, revision):
        if found := self.repo(kind, name, revision):
            request = json.loads(self.body) if self.body[:1] == b"{" else parse_qs(self.body.decode())
            requested = request.get("paths", [])
            folders = [p for p in requested if any(f.startswith(f"{p}/") for f in found[2])]
            shown = [self.described(p, found[2][p]) for p in requested if p in found[2]]
            shown += [{"type": "directory", "path": p, "oid": "0" * 40, "size": 0} for p in folders]
            self.send(200, shown, Content_Type="application/json")

    def resolve(self, data, name, revision, path):
        if found := self.repo("datasets" if data else "models", name, revision):
            if path not in found[2]:
                return self.error(404, "EntryNotFound")
            content = found[2][path]
            self.send(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=found[1],
                      Content_Type="application/octet-stream")

    def create(self):
        request = json.loads(self.body)
        key = f"{request.get('type', 'model')}s/{request['organization']}/{request['name']}"
        if not self.known:
            return self.error(401, "Unauthorized")
        if key in self.shared.repos:
            return self.error(409, "RepoExists")
        private = request.get("private") or request.get("visibility") == "private"
        self.shared.repos[key] = {"private": bool(private), "commits": []}
        self.send(200, {"url": f"{self.shared.endpoint}/{key.partition('/')[2]}"}, Content_Type="application/json")

    def validate(self):
        """A card's metadata: a mapping between two lines of three hyphens."""
        found = re.match(r"---\n(.*?)\n---\n", json.loads(self.body)["content"], re.DOTALL)
        values = yaml.safe_load(found[1]) if found else None
        errors = [] if isinstance(values, dict) else [{"message": "no metadata"}]
        self.send(400 if errors else 200, {"errors": errors, "warnings": []}, Content_Type="application/json")

    def preupload(self, kind, name, revision):
        if not self.known:
            return self.error(401, "Unauthorized")
        files = json.loads(self.body)["files"]
        modes = [{"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular",
                  "shouldIgnore": False, "oid": None} for f in files]
        self.send(200, {"files": modes}, Content_Type="application/json")

    def lfs(self, name):
        objects = [{"oid": o["oid"], "size": o["size"],
                    "actions": {"upload": {"href": f"{self.shared.endpoint}/blobs/{o['oid']}", "header": {}}}}
                   for o in json.loads(self.body)["objects"]]
        self.send(200, {"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")

    def put_blob(self, oid):
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.shared.blobs[oid] = self.body
        self.send(200)

    def commit(self, kind, name, revision):
        if not self.known:
            return self.error(401, "Unauthorized")
        files = {}
        for line in self.body.splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            elif item["key"] == "lfsFile":
                files[item["value"]["path"]] = self.shared.blobs[item["value"]["oid"]]
            else:
                self.shared.message = item["value"]["summary"]
        oid = self.shared.commit(f"{kind}/{name}", files)
        url = f"{self.shared.endpoint}/{name}/commit/{oid}"
        self.send(200, {"commitUrl": url, "commitOid": oid}, Content_Type="application/json")
