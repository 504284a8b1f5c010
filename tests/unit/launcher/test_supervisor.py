import pytest

from launcher.errors import StartupError
from launcher.supervisor import FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS, STEADY_SECONDS, Supervisor


class ScriptedChild:
    """Ends when told to."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.killed = False

    def exit_code(self) -> int | None:
        return self.code

    def describe_end(self) -> str:
        return f"exit code {self.code}"

    def kill(self) -> None:
        self.killed = True


class ScriptedService:
    """A service without a process: the supervisor only decides."""

    name = "api"

    def __init__(self) -> None:
        self.child = ScriptedChild()
        self.starts = 0
        self.obstacle: str | None = None

    def has_ended(self) -> bool:
        return self.child.code is not None

    def start(self) -> None:
        if self.obstacle is not None:
            raise StartupError(self.obstacle)
        self.starts += 1
        self.child = ScriptedChild()


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(service, said) -> Supervisor:
    return Supervisor([service], report=said.append)


def test_running_service_is_left_alone(supervisor, service, said):
    for now in range(100):
        supervisor.step(now)
    assert (service.starts, said) == (0, [])


def test_ended_service_is_started_again_after_the_delay(supervisor, service, said):
    supervisor.step(0.0)
    ended = service.child
    ended.code = 3
    supervisor.step(1.0)
    supervisor.step(1.0 + FIRST_DELAY_SECONDS * 0.9)
    assert service.starts == 0
    supervisor.step(1.0 + FIRST_DELAY_SECONDS)
    assert service.starts == 1
    assert ended.killed
    assert said == ["api ended (exit code 3); starting it again in 0.2 s"]


def delays_of(supervisor: Supervisor, service: ScriptedService, *, lives: list[float]) -> list[float]:
    now, delays = 0.0, []
    supervisor.step(now)
    for life in lives:
        now += life
        service.child.code = 1
        supervisor.step(now)
        ended_at, starts = now, service.starts
        while service.starts == starts:
            now += 0.1
            supervisor.step(now)
        delays.append(round(now - ended_at, 1))
    return delays


def test_delay_doubles_up_to_its_cap_while_it_fails_in_a_row(supervisor, service):
    delays = delays_of(supervisor, service, lives=[1.0] * 10)
    assert delays == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0], abs=0.11)
    assert max(delays) <= MAX_DELAY_SECONDS + 0.2


def test_delay_starts_small_again_after_a_steady_life(supervisor, service):
    delays = delays_of(supervisor, service, lives=[1.0, 1.0, STEADY_SECONDS, 1.0])
    assert delays == pytest.approx([0.2, 0.4, 0.2, 0.4], abs=0.11)


def test_failed_start_is_tried_again(supervisor, service, said):
    supervisor.step(0.0)
    service.child.code = 1
    service.obstacle = "the disk is full"
    supervisor.step(0.0)
    supervisor.step(1.0)
    service.obstacle = None
    supervisor.step(2.0)
    assert service.starts == 1
    assert said[1] == "the disk is full; starting it again in 0.4 s"
