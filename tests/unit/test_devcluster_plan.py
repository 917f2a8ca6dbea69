"""Which options a dev cluster takes, and which contradict it."""

import pytest

from graphd.devcluster.plan import MisuseError, Options, Plan


def all_ports(plan: Plan) -> list[int]:
    ports = plan.ports
    metrics = range(ports.metrics, ports.metrics + plan.workers)
    return [ports.router, ports.admin, ports.repair, *metrics, *ports.shards.values()]


def test_defaults_and_the_ports_of_a_new_plan() -> None:
    plan = Plan.new(Options(workers=3))
    assert (plan.shards, plan.first_shard, plan.slots, plan.repair) == (["s1", "s2", "s3"], "s1", 64, True)
    assert plan.ports.router == 7600
    assert len(set(all_ports(plan))) == len(all_ports(plan)) == 9


def test_port_0_is_a_free_one_and_stays() -> None:
    plan = Plan.new(Options(port=0))
    assert plan.ports.router not in (0, 7600)
    assert plan.settle(Options(port=0), running=True) == plan


def test_a_plan_survives_being_written_down() -> None:
    plan = Plan.new(Options(router={"write_wait_ms": 1.5}, postgres={"work_mem": "8MB"}))
    assert Plan.from_json(plan.as_json()) == plan


@pytest.mark.parametrize(
    "options",
    [
        Options(shards=0),
        Options(shards=17),
        Options(slots=63),
        Options(slots=0),
        Options(slots=32_768),
        Options(slots=2),
        Options(workers=0),
        Options(port=-1),
        Options(port=65_536),
    ],
)
def test_impossible_options_are_misuse(options: Options) -> None:
    with pytest.raises(MisuseError, match="--"):
        Plan.new(options)


@pytest.mark.parametrize("running", [True, False])
def test_constants_never_change(running: bool) -> None:
    plan = Plan.new(Options())
    with pytest.raises(MisuseError, match=r"--shards 2 contradicts .* has 3"):
        plan.settle(Options(shards=2), running=running)
    with pytest.raises(MisuseError, match=r"--slots 128 contradicts .* has 64"):
        plan.settle(Options(slots=128), running=running)
    assert plan.settle(Options(shards=3, slots=64, port=7600, workers=1, repair=True), running=running) == plan


@pytest.mark.parametrize("options", [Options(port=7601), Options(workers=2), Options(repair=False)])
def test_the_rest_changes_only_while_the_cluster_is_down(options: Options) -> None:
    plan = Plan.new(Options())
    with pytest.raises(MisuseError, match="runs already"):
        plan.settle(options, running=True)
    changed = plan.settle(options, running=False)
    assert changed != plan
    assert changed.ports.shards == plan.ports.shards
    assert len(set(all_ports(changed))) == len(all_ports(changed))


def test_ports_that_strangers_took_are_replaced_and_no_others() -> None:
    plan = Plan.new(Options(workers=2))
    taken = {plan.ports.metrics + 1, plan.ports.shards["s2"]}
    changed = plan.with_free_ports(taken)
    assert not taken & set(all_ports(changed))
    assert changed.ports.shards["s1"] == plan.ports.shards["s1"]
    assert (changed.ports.router, changed.ports.admin) == (plan.ports.router, plan.ports.admin)
