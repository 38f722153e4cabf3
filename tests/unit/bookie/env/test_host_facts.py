"""Facts of the host, from the real system and from made-up files."""

from pathlib import Path

from quire_bookie.env.host_facts import SYNCS, disk_facts, host_facts


def test_a_folder_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    facts = disk_facts(str(tmp_path))
    assert 0 < facts.free_bytes <= facts.total_bytes
    assert len(facts.sync_ms) == SYNCS and list(facts.sync_ms) == sorted(facts.sync_ms) and facts.sync_ms[0] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_file_system_is_that_of_the_nearest_mount_point(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"a / ext4 rw 0 0\nb {tmp_path} xfs rw 0 0\nc {tmp_path}/dat tmpfs rw 0 0\n")
    assert disk_facts(str(tmp_path / "data"), mounts).kind == "xfs"
    assert disk_facts("/", mounts).kind == "ext4"
    assert disk_facts("/", tmp_path / "absent").kind is None


def test_the_kernel_is_described_and_what_it_hides_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/vm/swappiness").write_text("60\n")
    (tmp_path / "kernel/mm/transparent_hugepage").mkdir(parents=True)
    (tmp_path / "kernel/mm/transparent_hugepage/enabled").write_text("always [madvise] never\n")
    facts = host_facts(tmp_path, tmp_path)
    assert (facts.swappiness, facts.huge_pages) == (60, "madvise")
    hidden = host_facts(tmp_path / "none", tmp_path / "none")
    assert (hidden.swappiness, hidden.huge_pages) == (None, None)
    assert hidden.kernel and hidden.clock_is_synchronised in (True, False, None)
