"""Code that all workloads share: the server's port, named checks, and a wait with a timeout."""

import os
import sys
import time
import traceback

PORT = int(os.environ["PANTALA_PORT"])
CA = os.environ.get("PANTALA_TLS_CA")
# The dictionary is empty if the port is not encrypted.
CERTIFICATES = {
    "ssl_ca_certs": CA,
    "ssl_certfile": os.environ["PANTALA_TLS_CERT"],
    "ssl_keyfile": os.environ["PANTALA_TLS_KEY"],
} if CA else {}
URL = f"{'rediss' if CA else 'redis'}://127.0.0.1:{PORT}/0"
# Arguments of redis.Redis.
TO = {"host": "127.0.0.1", "port": PORT, "ssl": bool(CA)} | CERTIFICATES
WAIT_MAX_S = 20


def run(*checks):
    """Runs checks in turn. After the first failed check, exits with 1."""
    for check in checks:
        start = time.monotonic()
        try:
            check()
        except Exception:
            traceback.print_exc()
            print(f"FAILED {check.__name__}", file=sys.stderr)
            # Threads of a failed check may still be waiting, so a normal exit would not end the
            # process.
            sys.stderr.flush()
            os._exit(1)
        print(f"ok {check.__name__} ({(time.monotonic() - start) * 1000:.0f} ms)", flush=True)


def until(what, condition):
    """Waits until `condition` holds."""
    end = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.01)
