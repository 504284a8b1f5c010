"""By what an engine knows whose a named volume is."""

from repositories.session_keeping import SessionKeepingRepository
from tests.support.queue import QueueWorld


def owner(world: QueueWorld, tenant: int) -> str:
    with world.engine.begin() as connection:
        return SessionKeepingRepository(connection).owner(tenant)


def test_it_is_the_same_each_time_and_another_for_each_tenant(world: QueueWorld):
    one, other = world.tenant("one"), world.tenant("other")
    assert owner(world, one) == owner(world, one)
    assert owner(world, one) != owner(world, other)


def test_tenant_of_the_same_number_in_another_installation_is_somebody_else(world: QueueWorld):
    tenant = world.tenant("one")
    before = owner(world, tenant)
    world.execute(
        "UPDATE tenants SET created_at = created_at + interval '1 microsecond' WHERE id = %(id)s", id=tenant
    )
    assert owner(world, tenant) != before
