"""Attacks of the other files of this folder on sandboxes of a stored image, whose root is the image's to write to."""

import pytest

from tests.security.test_escape import (  # noqa: F401 -- run here with the fixtures below
    is_live,
    probe_line,
    test_dangerous_system_calls_are_refused_with_an_error,
    test_execd_answers_nobody_inside,
    test_execd_cannot_be_changed_from_inside,
    test_execd_cannot_be_slowed_starved_or_ended_from_inside,
    test_kernel_files_and_devices_are_out_of_reach,
    test_next_sandbox_of_the_same_name_finds_no_trace,
    test_no_engine_or_cluster_is_in_reach,
    test_no_process_has_any_privilege,
    test_nothing_outside_answers_without_a_network,
    test_nothing_types_into_a_terminal,
    test_process_links_show_nothing_of_the_host,
    test_programs_inherit_only_their_streams,
    test_sandbox_is_nobody_on_the_host,
    test_sandboxes_do_not_see_each_other,
    test_setuid_bit_cannot_be_set_to_any_use,
)
from tests.security.test_exhaustion import (  # noqa: F401 -- as above
    test_disk_stops_at_its_limit_in_every_folder_together,
    test_fork_bomb_stops_at_its_limit_and_is_removed,
    test_number_of_files_stops_at_its_limit,
)
from tests.security.test_files import (  # noqa: F401 -- as above
    box,
    folder,
    test_a_directory_swapped_with_a_link_during_writes_lets_nothing_out,
    test_a_full_disk_leaves_the_old_content,
    test_links_give_no_rights,
    test_no_form_of_a_path_leaves_the_sandbox,
    test_what_is_no_regular_file_is_refused_at_once,
)
from tests.support import probes
from tests.support.image_archives import folder as folder_entry
from tests.support.sandboxes import is_root
from tests.support.stored_images import busybox_entries, store_image

as_root = pytest.mark.skipif(not is_root(), reason="needs root")

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def real_kind(local):
    """The local runtime with an image of busybox, for user 1000."""
    folders = [folder_entry(name, uid=1000) for name in ("var", "var/tmp", "run", "work", "home")]
    folders.append(folder_entry("etc"))
    with store_image(local, busybox_entries(), folders, User="1000", WorkingDir="/home") as kind:
        yield kind


@pytest.fixture(scope="module")
def shared_box(real_kind):
    with real_kind.box(workdir="/work") as made:
        yield made


@as_root
def test_what_belongs_to_others_in_an_image_cannot_be_changed(shared_box):
    """T9: without root on the host, all of an image's files are one user's."""
    assert probes.find(shared_box, "system_folders") == []


@pytest.mark.parametrize(
    "program", ["system_calls", "kernel_files", "engine_sockets", "host_links", "attack_execd", "steer_execd"]
)
def test_user_0_of_an_image_is_as_far_from_a_way_out(box_of_root, program):
    """T1 to T7: the image's root, to whom all of its files belong."""
    assert probes.find(box_of_root, program) == []


@pytest.fixture(scope="module")
def box_of_root(local):
    with store_image(local, busybox_entries(), name="root") as kind, kind.box() as made:
        yield made


def test_disk_of_a_stored_image_comes_back(local):
    """T18: in every folder together, whoever starts the sandbox, and gone with it."""
    fill = "for n in 1 2 3 4; do head -c 6000000 /dev/zero > /tmp/$n; done 2>/dev/null; cat /tmp/? | wc -c"
    with store_image(local, busybox_entries(), name="disk") as kind:
        for _ in range(2):
            with kind.box(limits={"disk_bytes": 8 << 20}) as box:
                assert (6 << 20) < int(box.sh(fill).out) <= 8 << 20
                assert box.sh("rm /tmp/?; echo x > /tmp/again; cat /tmp/again").out == "x\n"
        assert list((kind.runtime._config.state_dir).glob("disk/*")) == []
