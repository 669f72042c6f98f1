"""A publisher of KV events on libzmq, as an engine runs one.

Prints "<events port> <replay port>", then takes lines from its input:
"send HEX" publishes a payload, "keep HEX" only numbers and keeps it.
"""
import sys
import threading

import zmq

ctx = zmq.Context()
pub = ctx.socket(zmq.PUB)
pub.set_hwm(100_000)
router = ctx.socket(zmq.ROUTER)
ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (pub, router)]
kept = []


def answer():
    while True:
        client, empty, start = router.recv_multipart()
        for seq, payload in list(enumerate(kept))[int.from_bytes(start, "big") :]:
            router.send_multipart((client, empty, seq.to_bytes(8, "big"), payload))
        router.send_multipart((client, empty, (-1).to_bytes(8, "big", signed=True), b""))


threading.Thread(target=answer, daemon=True).start()
print(*ports, flush=True)
for line in sys.stdin:
    verb, payload = line.split()
    payload = bytes.fromhex(payload)
    kept.append(payload)
    if verb == "send":
        pub.send_multipart((b"kv-events", (len(kept) - 1).to_bytes(8, "big"), payload))
