"""An etcd of three members, any of which can be stopped, killed and restarted."""

import json
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.etcd_server import EtcdServer, require_etcd

SIZE = 3


class EtcdMembers:
    """Owns the members; clients use the endpoints of all of them."""

    def __init__(self, folder: Path) -> None:
        binary = require_etcd()
        self.members: list[EtcdServer] = []
        for number in range(SIZE):
            place = folder / f"m{number}"
            place.mkdir(parents=True)
            self.members.append(EtcdServer(binary, place))
        peers = ",".join(f"m{number}=http://127.0.0.1:{one.peer_port}" for number, one in enumerate(self.members))
        for number, one in enumerate(self.members):
            # The last of two equal flags counts.
            one.extra = ("--name", f"m{number}", "--initial-cluster", peers)

    @property
    def endpoint(self) -> str:
        """host:port of each, by commas."""
        return ",".join(one.endpoint for one in self.members)

    @property
    def url(self) -> str:
        """For `open_metadata_store`."""
        return f"etcd://{self.endpoint}"

    def start(self) -> None:
        """Start all at once, as the first serves only with a second."""
        with ThreadPoolExecutor(SIZE) as threads:
            list(threads.map(EtcdServer.start, self.members))

    def close(self) -> None:
        """Kill all of them."""
        for one in self.members:
            one.kill()

    def leader(self) -> EtcdServer:
        """Return the leader, according to the first member that knows it."""
        for one in self.members:
            try:
                status = one.call("maintenance/status", {})
            except (OSError, urllib.error.URLError, json.JSONDecodeError):
                continue
            header = status["header"]
            assert isinstance(header, dict)
            if header["member_id"] == status.get("leader"):
                return one
        raise AssertionError("no member leads")

    def hand_over(self) -> EtcdServer:
        """Move the leadership to another member cleanly, and return that member."""
        former = self.leader()
        other = next(one for one in self.members if one is not former)
        header = other.call("maintenance/status", {})["header"]
        assert isinstance(header, dict)
        former.call("maintenance/transfer-leadership", {"targetID": header["member_id"]})
        return other
