"""An etcd of three members, any of which can be stopped, killed, restarted and replaced."""

import json
import shutil
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.polling import until

SIZE = 3


class EtcdMembers:
    """Owns the members; clients use the endpoints of all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._binary = folder, require_etcd()
        self._made = SIZE
        self.members: list[EtcdServer] = []
        for number in range(SIZE):
            place = folder / f"m{number}"
            place.mkdir(parents=True)
            self.members.append(EtcdServer(self._binary, place))
        self._names = [f"m{number}" for number in range(SIZE)]
        for number, one in enumerate(self.members):
            # The last of two equal flags counts.
            one.extra = ("--name", self._names[number], "--initial-cluster", self._peers())

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

    def ids(self) -> dict[str, str]:
        """Return the members' ids by name, according to the first member that answers."""
        listed = self._any_but(None).call("cluster/member/list", {})["members"]
        assert isinstance(listed, list)
        return {str(one.get("name", "")): str(one["ID"]) for one in listed}

    def replace(self, number: int, *, elsewhere: bool = False) -> None:
        """Remove a running member, and let one with an empty volume join, under its name and address or others."""
        one = self.members[number]
        other = self._any_but(one)
        removed = self.ids()[self._names[number]]
        reconfigure(other, "remove", {"ID": removed})
        # A removed leader hands nothing over, and a change that another member still forwards to it is lost.
        until(lambda: other.call("maintenance/status", {}).get("leader", removed) != removed, "no other member leads")
        one.kill()
        if elsewhere:
            place = self._folder / f"m{self._made}"
            place.mkdir()
            one = self.members[number] = EtcdServer(self._binary, place)
            self._names[number] = place.name
            self._made += 1
        else:
            shutil.rmtree(one.folder / "data")
        reconfigure(other, "add", {"peerURLs": [_peer_url(one)]})
        one.extra = ("--name", self._names[number], "--initial-cluster", self._peers())
        one.extra += ("--initial-cluster-state", "existing")
        one.start()

    def _peers(self) -> str:
        return ",".join(f"{name}={_peer_url(one)}" for name, one in zip(self._names, self.members, strict=True))

    def _any_but(self, unwanted: EtcdServer | None) -> EtcdServer:
        return next(one for one in self.members if one is not unwanted)


def reconfigure(member: EtcdServer, change: str, body: dict[str, object]) -> None:
    """Change the members. etcd refuses it as unhealthy until all of them have been connected for five seconds."""

    def changed() -> bool:
        try:
            member.call(f"cluster/member/{change}", body)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise AssertionError(f"member {change}: {error.read().decode()}") from error
            return False
        return True

    until(changed, f"etcd does not {change} a member")


def _peer_url(member: EtcdServer) -> str:
    return f"http://127.0.0.1:{member.peer_port}"
