/* Perfetto's own trace processor on a pipe, for trace_processor.py:  node trace_processor.js FOLDER
 *
 * FOLDER has engine_bundle.js and its WebAssembly, as Perfetto's page runs them. The bundle is a worker that takes requests from a
 * message port; this is the worker's environment. Requests come from standard input and replies go to standard output, both in the
 * protocol of TraceProcessorRpcStream.
 */
"use strict";
const fs = require("fs"), path = require("path");
const folder = process.argv[2];

/* How the bundle reads its WebAssembly: at once, by name. */
class FileRequest {
    open(method, name) { this.name = path.basename(name); }
    send() { this.response = fs.readFileSync(path.join(folder, this.name)); }
}

function reply(bytes) {
    for (let at = 0; at < bytes.length;) {
        at += fs.writeSync(1, bytes, at);
    }
}

const port = { postMessage: reply };
const quiet = { log() {}, warn() {}, error() {} };
const self = { location: { href: "engine_bundle.js" } };
const bundle = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
new Function("self", "process", "WorkerGlobalScope", "XMLHttpRequest", "console", bundle)(self, undefined, class {}, FileRequest, quiet);
self.onmessage({ data: port });
process.stdin.on("data", (chunk) => port.onmessage({ data: new Uint8Array(chunk) }));
