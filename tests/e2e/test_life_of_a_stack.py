"""Starting, restarting, breaking and ending a stack, and two models behind one gateway."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, wait_until


def running(pids: list[int]) -> list[int]:
    alive = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            alive.append(pid)
    return alive


def ask(stack: Stack, question: str = "What is TTFT?", model: str = "baton-demo"):
    answer = stack.client().chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=20
    )
    return answer.choices[0].message.content


def test_a_stack_survives_a_dead_service_keeps_its_keys_and_leaves_nothing(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "home", "--aggregated", "1").start()
    text = ask(stack)
    key = stack.api_key

    victim = stack.pids()["tokenizer"]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: "tokenizer ended with signal SIGKILL" in stack.output.read_text())
    wait_until(lambda: stack.pids()["tokenizer"] not in (0, victim))
    wait_until(lambda: _answers(stack, text))

    pids = stack.all_pids()
    assert stack.interrupt() == 0
    assert running(pids) == []
    assert stack.home.read_state() is None

    stack.start()
    assert stack.api_key == key
    assert ask(stack) == text
    pids = stack.all_pids()
    stack.interrupt(times=2)
    wait_until(lambda: running(pids) == [])


def _answers(stack: Stack, text: str) -> bool:
    import openai

    try:
        return ask(stack) == text
    except openai.APIError:
        return False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "no-such-model"], "no-such-model"),
        (["--kv-memory", "100TB"], "too little memory"),
    ],
)
def test_what_cannot_start_says_so_in_one_line(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    result = Stack(tmp_path / "home").command("up", "--port", "0", *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_detached_stack_is_ready_when_the_command_returns_and_down_ends_it(
    tmp_path: Path,
) -> None:
    stack = Stack(tmp_path / "home")
    up = stack.command("up", "--port", "0", "--aggregated", "1", "--detach")
    assert up.returncode == 0, up.stdout + up.stderr
    state = stack.home.read_state()
    assert state is not None
    assert ask(stack)
    down = stack.command("down")
    assert down.returncode == 0, down.stdout + down.stderr
    pids = [int(row["pid"]) for row in state.services.values()]
    assert running([state.supervisor_pid, *pids]) == []
    assert "no stack runs" in stack.command("down").stderr


def make_variant(folder: Path, seed: int) -> str:
    """A model folder with the demo model's shape and tokenizer, and random weights of its own."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from baton.demo_model import demo_model_path

    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(demo_model_path() / name, folder / name)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    model.float().save_pretrained(folder)
    return str(folder)


def generate(folder: str, question: str, max_tokens: int) -> str:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
    return tokenizer.decode(output[0][inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_two_models_answer_with_their_own_weights_and_speculation_changes_nothing(
    tmp_path: Path,
) -> None:
    folders = [make_variant(tmp_path / name, seed) for seed, name in enumerate(("one", "two"))]
    models = [argument for folder in folders for argument in ("--model", folder)]
    stack = Stack(
        tmp_path / "home", *models, "--decode", "1", "--dtype", "float32", "--kv-memory", "32MiB",
        "--speculate", "4",
    ).start()  # fmt: skip
    try:
        # The second question repeats what an answer's beginning looks like.
        questions = ["What is TTFT?", f"Repeat: {' '.join(['the first token'] * 10)}"]
        texts = [[ask(stack, q, model=name) for q in questions] for name in ("one", "two")]
        assert texts[0][0] != texts[1][0]
        assert texts == [[generate(folder, q, 20) for q in questions] for folder in folders]
        answer = stack.client().chat.completions.create(
            model="one",
            messages=[{"role": "user", "content": questions[0]}],
            extra_body={"guided_regex": "(prefill and decode, ){6}"},
        )
        assert answer.choices[0].message.content == "prefill and decode, " * 6
        accepted = stack.metric("decode-1-one", "vllm:spec_decode_num_accepted_tokens_total")
        assert accepted > 5
    finally:
        stack.interrupt()
