"""The plan: what fits is planned with reasons, what does not is refused with the arithmetic.

The golden files under tests/golden/plans are read line by line by a person. To write them anew after a change that was
meant: UPDATE_GOLDEN=1 pytest tests/unit/test_plan.py tests/unit/test_flags.py, then read the diff.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llamarack.core.plugins.module_utils import memory, plan
from hypothesis import given, settings
from hypothesis import strategies as st

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
GIB = 1024**3
KEYS = [
    "model",
    "alias",
    "host",
    "port",
    "threads",
    "threads_batch",
    "context",
    "slots",
    "cache_type_k",
    "cache_type_v",
    "flash_attention",
    "load_mode",
    "repack",
    "fit",
    "prompt_cache_mib",
    "batch",
    "ubatch",
    "ui",
    "metrics",
    "slots_endpoint",
]


def facts(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / f"facts/{name}.json").read_text())
    return content


def wanted(name: str = "main", port: int = 8080, model: str = "kimi-k2", **policy: Any) -> dict[str, Any]:
    return {"name": name, "model": model, "port": port, "policy": policy}


def planned(host: str, model: str, build: dict[str, Any] | None = None, **policy: Any) -> dict[str, Any]:
    catalogue_name = facts(model)["name"]
    return plan.make_plan(facts(host), build or facts("build"), facts(model), wanted(model=catalogue_name, **policy))


def decision(body: dict[str, Any], key: str) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in body["decisions"] if item["key"] == key)
    return found


def value(body: dict[str, Any], key: str) -> Any:
    return decision(body, key)["value"]


def refused(host: str, model: str, **policy: Any) -> str:
    with pytest.raises(plan.PlanError) as error:
        planned(host, model, **policy)
    return str(error.value)


def readable(body: dict[str, Any]) -> str:
    """A plan as a person reviews it."""
    lines = [f"{key}: {body[key]}" for key in ("instance", "model", "build_id", "model_path", "model_bytes", "alias")]
    lines += ["", "memory"]
    lines += [f"  {key:<20} {size:>15,}  {memory.gib(size)}" for key, size in body["memory"].items()]
    for item in body["decisions"]:
        lines += ["", f"{item['key']} = {item['value']}  [{item['source']}]", f"  {item['reason']}"]
        if item["alternatives"]:
            lines.append(f"  instead of: {', '.join(item['alternatives'])}")
    return "\n".join(lines) + "\n"


def compare_with_golden(name: str, text: str) -> None:
    path = GOLDEN / f"plans/{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert path.read_text() == text


# --- plans that a person reviews ---


@pytest.mark.parametrize(
    ("host", "model", "policy"),
    [
        ("epyc_384", "kimi_k2", {"fit": "ram", "context": 131072}),
        ("container_24", "tiny_k2", {}),
        ("container_24", "gemma3_270m", {"context": "auto", "slots": 2}),
    ],
)
def test_the_plan_of_a_known_machine(host: str, model: str, policy: dict[str, Any]) -> None:
    compare_with_golden(f"{host}_{model}", readable(planned(host, model, **policy)))


def test_a_laptop_is_refused_politely() -> None:
    compare_with_golden("laptop_16_kimi_k2", refused("laptop_16", "kimi_k2") + "\n")


# --- rules ---


def test_the_same_facts_make_the_same_plan_whatever_is_free_right_now() -> None:
    host = facts("epyc_384")
    busy = {**host, "memory": {**host["memory"], "available_bytes": GIB}}
    plans = [plan.make_plan(each, facts("build"), facts("kimi_k2"), wanted()) for each in (host, busy)]
    assert plans[0] == plans[1]
    assert [item["key"] for item in plans[0]["decisions"]] == KEYS


def test_threads_are_the_cores_that_compute_at_full_speed() -> None:
    assert value(planned("epyc_384", "kimi_k2"), "threads") == 32
    laptop = planned("laptop_16", "tiny_k2")
    assert value(laptop, "threads") == value(laptop, "threads_batch") == 4
    assert "4 of them performance cores" in decision(laptop, "threads")["reason"]
    limited = facts("epyc_384")
    limited["cpu"].update(usable_physical_cores=6, quota_cpus=6.5)
    body = plan.make_plan(limited, facts("build"), facts("tiny_k2"), wanted(model="tiny-k2"))
    assert "6 of 32 physical cores are usable under a quota of 6.5 CPUs" in decision(body, "threads")["reason"]


def test_context_comes_from_the_policy_and_never_exceeds_the_training() -> None:
    assert value(planned("epyc_384", "kimi_k2"), "context") == 32768
    assert value(planned("epyc_384", "kimi_k2", context="65536"), "context") == 65536
    body = planned("epyc_384", "kimi_k2", context=262144)
    assert value(body, "context") == 131072
    assert "262144 tokens were asked for, but the model was trained for 131072" in decision(body, "context")["reason"]


def test_context_is_per_conversation_and_the_server_gets_the_sum() -> None:
    body = planned("epyc_384", "kimi_k2", context=30000, slots=4)
    assert value(body, "context") == 4 * 30208
    assert "30208 for each of 4 conversations" in decision(body, "context")["reason"]


def test_auto_takes_the_longest_context_that_fits() -> None:
    assert value(planned("epyc_384", "kimi_k2", context="auto"), "context") == 131072
    body = planned("epyc_384", "kimi_k2", context="auto", slots=4)
    assert value(body, "context") == 4 * 65536
    assert "524288 tokens would need" in decision(body, "context")["reason"]
    tight = facts("epyc_384")
    tight["memory"]["usable_bytes"] = 363 * GIB
    body = plan.make_plan(tight, facts("build"), facts("kimi_k2"), wanted(context="auto"))
    assert (value(body, "context"), value(body, "cache_type_k")) == (32768, "f16")
    tight["memory"]["usable_bytes"] = int(361.7 * GIB)
    body = plan.make_plan(tight, facts("build"), facts("kimi_k2"), wanted(context="auto"))
    assert (value(body, "context"), value(body, "cache_type_k")) == (32768, "q8_0")


def test_half_precision_comes_before_a_quantised_cache() -> None:
    body = planned("epyc_384", "kimi_k2")
    assert (value(body, "cache_type_k"), value(body, "cache_type_v"), value(body, "flash_attention")) == (
        "f16",
        "f16",
        "auto",
    )
    tight = facts("epyc_384")
    tight["memory"]["usable_bytes"] = 366 * GIB
    body = plan.make_plan(tight, facts("build"), facts("kimi_k2"), wanted(context=131072))
    assert (value(body, "cache_type_k"), value(body, "cache_type_v"), value(body, "flash_attention")) == (
        "q8_0",
        "q8_0",
        "on",
    )
    assert "f16 does not fit" in decision(body, "cache_type_k")["reason"]


def test_under_mla_one_type_is_asked_and_both_follow() -> None:
    body = planned("epyc_384", "kimi_k2", cache_type_v="q5_1")
    assert (value(body, "cache_type_k"), value(body, "cache_type_v")) == ("q5_1", "q5_1")
    said = refused("epyc_384", "kimi_k2", cache_type_k="q8_0", pins={"cache_type_v": "f16"})
    assert "cache_type_k is q8_0 and cache_type_v is f16" in said
    other = planned("container_24", "gemma3_270m", cache_type_k="q8_0")
    assert (value(other, "cache_type_k"), value(other, "cache_type_v")) == ("q8_0", "f16")


def test_mmap_keeps_only_what_each_token_uses_in_ram() -> None:
    body = planned("laptop_16", "kimi_k2", fit="mmap", context=16384)
    assert body["memory"]["weights_bytes"] == 377754290176 - 367295201280
    assert (value(body, "load_mode"), value(body, "repack")) == ("mmap", False)
    assert "342.1 GiB of experts are read from the disk" in decision(body, "load_mode")["reason"]
    for pins in ({"repack": True}, {"load_mode": "none"}):
        assert "does not fit" in refused("laptop_16", "kimi_k2", fit="mmap", pins=pins)
    dense = planned("laptop_16", "gemma3_270m", fit="mmap")
    assert "no experts" in decision(dense, "load_mode")["reason"]


def test_hybrid_without_a_gpu_backend_says_so() -> None:
    body = planned("epyc_384", "kimi_k2", fit="hybrid")
    assert "b11311-cpu-native-0123abcd has no GPU backend (cpu), so that everything stays in RAM" in str(
        decision(body, "load_mode")["reason"]
    )
    cuda = planned("epyc_384", "kimi_k2", build={**facts("build"), "backends": ["cuda"]}, fit="hybrid")
    assert value(cuda, "gpu_layers") == 0
    assert "places nothing on the GPU (cuda)" in decision(cuda, "load_mode")["reason"]


def test_the_prompt_cache_takes_no_more_than_there_is() -> None:
    assert value(planned("container_24", "tiny_k2"), "prompt_cache_mib") == 8192
    tight = facts("epyc_384")
    tight["memory"]["usable_bytes"] = int(362.6 * GIB)
    body = plan.make_plan(tight, facts("build"), facts("kimi_k2"), wanted())
    assert value(body, "prompt_cache_mib") == 0
    assert "are left: earlier prompts are computed again" in decision(body, "prompt_cache_mib")["reason"]


# --- pins and slips ---


def test_a_pin_wins_and_the_rest_is_planned_around_it() -> None:
    pins = {"threads": "1", "context": 8192, "slots": 2, "ubatch": 256, "ui": True, "flash_attention": False}
    body = planned("container_24", "gemma3_270m", pins=pins)
    for key, wish in {**pins, "threads": 1, "flash_attention": "off"}.items():
        assert (value(body, key), decision(body, key)["source"]) == (wish, "pinned")
    assert value(body, "threads_batch") == 2
    assert "the plan would say 2" in decision(body, "threads")["reason"]
    same = planned("container_24", "gemma3_270m", pins={"threads": 2})
    assert "the plan would say the same" in decision(same, "threads")["reason"]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"contxt": 4096}, "policy has no key contxt: did you mean context?"),
        ({"zzz": 1}, "policy has no key zzz: there are fit, context"),
        ({"fit": "rma"}, "policy fit is 'rma', but should be one of ram, hybrid, mmap; did you mean ram?"),
        ({"context": "large"}, "policy context is 'large', but should be a whole number from 256 to 16777216 or "),
        ({"context": True}, "policy context is True"),
        ({"slots": 0}, "policy slots is 0"),
        ({"cache_type_k": "q8"}, "did you mean q8_0?"),
        ({"pins": ["threads"]}, "policy pins is ['threads'], but should be a mapping"),
        ({"pins": {"ubtach": 1}}, "policy pins has no key ubtach: did you mean ubatch?"),
        ({"pins": {"port": 1}}, "port cannot be pinned: set it in the instance itself."),
        ({"pins": {"fit": True}}, "fit cannot be pinned"),
        ({"pins": {"ui": "no"}}, "pin ui is 'no', but should be true or false."),
        ({"pins": {"load_mode": "nmap"}}, "did you mean mmap?"),
        ({"pins": {"threads": 8}}, "threads is pinned to 8, but only 2 CPUs of the host are usable"),
        ({"cache_type_v": "q8_0", "pins": {"flash_attention": False}}, "needs flash attention, which is pinned off"),
        ({"pins": {"context": 16000000}}, "but there are 22.4 GiB"),
        ({"pins": {"prompt_cache_mib": 40000}}, "what would do: a smaller prompt_cache_mib"),
    ],
)  # fmt: skip
def test_a_slip_is_refused_in_one_sentence(policy: dict[str, Any], said: str) -> None:
    message = refused("container_24", "gemma3_270m", **policy)
    assert said in message
    assert message.startswith("main: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("instance", "said"),
    [
        ({"name": "main", "port": 1}, "model is not set"),
        ({"name": "main", "model": "m"}, "port is None"),
        ({"name": "main", "model": "m", "port": 70000}, "port is 70000"),
        ({"name": "main", "model": "m", "port": 1, "policy": "ram"}, "policy is 'ram', but should be a mapping"),
    ],
)
def test_an_instance_must_say_what_and_where(instance: dict[str, Any], said: str) -> None:
    with pytest.raises(plan.PlanError, match=re.escape(said)):
        plan.read_wish(instance)


def test_a_header_that_says_too_little_is_refused() -> None:
    model = facts("kimi_k2")
    model["gguf"]["block_count"] = None
    with pytest.raises(plan.PlanError, match=r"kimi-k2 cannot be planned: the header does not say block_count"):
        plan.make_plan(facts("epyc_384"), facts("build"), model, wanted())


def test_a_refusal_names_what_would_do() -> None:
    said = refused("epyc_384", "kimi_k2", pins={"context": 1048576})
    assert "context 262144" in said
    assert "cache_type_k and cache_type_v q4_0" not in said
    assert "policy fit: mmap" in said
    said = refused("epyc_384", "kimi_k2", cache_type_k="f16", pins={"context": 393216})
    assert "cache_type_k and cache_type_v q8_0" in said
    said = refused("laptop_16", "kimi_k2", fit="mmap", context=131072, cache_type_k="f32")
    assert "weights outside the experts 9.74 GiB" in said


def test_what_a_refusal_promises_holds() -> None:
    said = refused("laptop_16", "kimi_k2")
    required = re.search(r"a host with ([\d.]+) GiB of usable RAM", said)
    assert required is not None
    host = facts("laptop_16")
    host["memory"]["usable_bytes"] = int((float(required.group(1)) + 0.05) * GIB)
    assert plan.make_plan(host, facts("build"), facts("kimi_k2"), wanted())["memory"]["total_bytes"]


# --- several instances on a host ---


def test_two_instances_share_what_there_is() -> None:
    first, second = wanted(model="gemma3-270m", context="auto"), wanted("other", 8081, "tiny-k2")
    gemma, tiny, host, build = facts("gemma3_270m"), facts("tiny_k2"), facts("container_24"), facts("build")
    host["memory"]["usable_bytes"] = 3 * GIB
    plans = [
        plan.make_plan(host, build, gemma, first, [(tiny, second)]),
        plan.make_plan(host, build, tiny, second, [(gemma, first)]),
    ]
    total = sum(body["memory"]["total_bytes"] for body in plans)
    assert total <= 3 * GIB - plans[0]["memory"]["reserve_bytes"]


def test_two_instances_on_one_port_are_refused() -> None:
    with pytest.raises(plan.PlanError, match="main and other both want port 8080"):
        plan.make_plan(
            facts("container_24"), facts("build"), facts("tiny_k2"), wanted(), [(facts("tiny_k2"), wanted("other"))]
        )


def test_a_neighbour_that_leaves_no_room_is_named_in_the_arithmetic() -> None:
    other = (facts("kimi_k2"), wanted("other", 8081))
    with pytest.raises(plan.PlanError, match=r"and 35\d\.\d GiB for the other instances"):
        plan.make_plan(facts("epyc_384"), facts("build"), facts("kimi_k2"), wanted(), [other])


# --- whatever the host and the model are ---


@st.composite
def hosts(draw: st.DrawFn) -> dict[str, Any]:
    host = facts("epyc_384")
    cores = draw(st.integers(1, 256))
    host["cpu"].update(
        physical_cores=cores,
        logical_cpus=cores * draw(st.integers(1, 2)),
        usable_cpus=list(range(cores)),
        usable_physical_cores=draw(st.integers(1, cores)),
        performance_cores=draw(st.none() | st.integers(1, cores)),
        quota_cpus=draw(st.none() | st.floats(0.5, 64)),
    )
    host["memory"]["usable_bytes"] = draw(st.integers(GIB // 4, 2048 * GIB))
    return host


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    model = facts(draw(st.sampled_from(["kimi_k2", "tiny_k2", "gemma3_270m"])))
    size = draw(st.integers(10**6, 10**12))
    mla = draw(st.booleans())
    model["bytes"] = size + 4096
    model["gguf"].update(
        block_count=draw(st.integers(1, 100)),
        context_length=draw(st.none() | st.integers(256, 2**20)),
        head_count=draw(st.integers(1, 128)),
        head_count_kv=draw(st.integers(1, 64)),
        key_length_mla=192 if mla else None,
        value_length_mla=128 if mla else None,
        tensor_bytes=size,
        tensor_bytes_by_role={"routed_experts": draw(st.integers(0, size))},
    )
    return model


POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "fit": st.sampled_from(["ram", "hybrid", "mmap"]),
        "context": st.just("auto") | st.integers(256, 2**20),
        "slots": st.integers(1, 8),
        "cache_type_k": st.sampled_from(["f16", "q8_0", "q4_0"]),
        "pins": st.fixed_dictionaries(
            {}, optional={"prompt_cache_mib": st.integers(0, 10**5), "ubatch": st.integers(32, 4096)}
        ),
    },
)


def attempt(
    host: dict[str, Any], model: dict[str, Any], instance: dict[str, Any], *siblings: tuple[Any, Any]
) -> dict[str, Any] | None:
    """A plan, or None for a refusal in one sentence with figures."""
    try:
        return plan.make_plan(host, facts("build"), model, instance, siblings)
    except plan.PlanError as refusal:
        message = str(refusal)
    assert "\n" not in message
    assert re.search(r"GiB|MiB|cannot be planned", message)
    return None


@settings(max_examples=150, deadline=None)
@given(hosts(), models(), models(), POLICIES, POLICIES)
def test_no_plan_takes_more_than_the_host_has(
    host: dict[str, Any],
    model: dict[str, Any],
    other_model: dict[str, Any],
    policy: dict[str, Any],
    other_policy: dict[str, Any],
) -> None:
    first, second = wanted(**policy), wanted("other", 8081, **other_policy)
    usable = host["memory"]["usable_bytes"]
    alone = attempt(host, model, first)
    if alone is None:
        return
    assert alone["memory"]["total_bytes"] <= alone["memory"]["available_bytes"] < usable
    assert all(item["reason"] and "\n" not in item["reason"] for item in alone["decisions"])
    assert [item["key"] for item in alone["decisions"]] == KEYS
    for key, pin in policy.get("pins", {}).items():
        assert (value(alone, key), decision(alone, key)["source"]) == (pin, "pinned")
    if memory.is_mla(model["gguf"]):
        assert value(alone, "cache_type_k") == value(alone, "cache_type_v")
    both = [
        attempt(host, model, first, (other_model, second)),
        attempt(host, other_model, second, (model, first)),
    ]
    # Together they fit, or neither is planned beside the other.
    assert (both[0] is None) == (both[1] is None)
    assert sum(body["memory"]["total_bytes"] for body in both if body) < usable
