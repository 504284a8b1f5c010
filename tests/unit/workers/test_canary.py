from workers.canary import MISSES, Canary


class World:
    def __init__(self) -> None:
        self.rung: list[str] = []
        self.noted = 0
        self.is_away = False
        self.canary = Canary(ring=self.ring, on_answer=self.note, on_dead=lambda: None, interval_seconds=1.0)

    def ring(self, nonce: str) -> None:
        if self.is_away:
            raise ConnectionError
        self.rung.append(nonce)

    def note(self) -> None:
        self.noted += 1


def test_worker_that_answers_lives_on():
    world = World()
    for _ in range(3 * MISSES):
        assert world.canary.step()
        world.canary.answer(world.rung[-1])
    assert world.noted == 3 * MISSES == len(set(world.rung))


def test_worker_is_dead_after_three_misses_in_a_row_and_not_before():
    world = World()
    assert [world.canary.step() for _ in range(MISSES)] == [True] * MISSES
    assert not world.canary.step()


def test_one_answer_in_between_starts_the_count_anew():
    world = World()
    for _ in range(MISSES):
        assert world.canary.step()
    world.canary.answer(world.rung[-1])
    assert [world.canary.step() for _ in range(MISSES)] == [True] * MISSES
    assert not world.canary.step()


def test_answers_to_older_or_foreign_bells_do_not_count():
    world = World()
    for _ in range(MISSES):
        assert world.canary.step()
        world.canary.answer("forged")
        world.canary.answer(world.rung[0] if len(world.rung) > 1 else "old")
    assert not world.canary.step()
    assert world.noted == 0


def test_broker_that_is_away_kills_nobody():
    world = World()
    world.is_away = True
    assert all(world.canary.step() for _ in range(10 * MISSES))
    world.is_away = False
    assert [world.canary.step() for _ in range(MISSES)] == [True] * MISSES


def test_database_that_is_away_is_not_the_brokers_fault():
    world = World()
    world.canary.step()

    def fail() -> None:
        raise OSError

    world.canary._on_answer = fail
    world.canary.answer(world.rung[-1])
    assert [world.canary.step() for _ in range(MISSES)] == [True] * MISSES
