"""The two training loops: the target, then the drafter on text that the target wrote."""

import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kdnb.training.data import Corpus
from kdnb.training.drafter import DrafterModel, draft_logits, draft_loss
from kdnb.training.export import load_target_model
from kdnb.training.measure import bits_per_byte
from kdnb.training.model import TargetModel
from kdnb.training.recipe import Recipe
from kdnb.training.sampling import continue_rows, distinct_share

REPORT_SECONDS, SAVE_SECONDS = 10.0, 60.0
WARM_UP_STEPS = 200  # steps and not time, of which the first step spends much on compiling
GREEDY_SHARE = 2 / 3  # of the rows that the target writes; the others are sampled


class PausedError(Exception):
    """The time of this call is over; the checkpoint holds what was done."""


@dataclass
class Clock:
    """How far a stage is: by its time, or by its steps if they are fewer."""

    seconds: float
    max_steps: int
    spent: float = 0.0
    step: int = 0
    last: float = field(default_factory=time.monotonic)

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return min(1.0, max(self.spent / self.seconds, self.step / self.max_steps))

    def tick(self) -> None:
        """One more step."""
        now = time.monotonic()
        self.spent, self.last, self.step = self.spent + now - self.last, now, self.step + 1

    @property
    def rate(self) -> float:
        """Learning rate in units of its peak: a straight rise, under a half cosine to 0."""
        rise = (self.step + 1) / min(WARM_UP_STEPS, 1 + self.max_steps // 10)
        return min(1.0, rise) * 0.5 * (1 + math.cos(math.pi * self.progress))


@dataclass
class Session:
    """What both loops need.

    Args:
        recipe: The numbers.
        corpus: The text.
        folder: Where everything is written.
        device: Where tensors live.
        seed: Of weights, batches and noise. Times decide the number of steps, so two runs are alike but
            not equal.
        compiled: Whether layers go through torch.compile.
        pause_at: time.monotonic() at which to save and stop.
        resumed: A checkpoint's content, or empty.
    """

    recipe: Recipe
    corpus: Corpus
    folder: Path
    device: torch.device
    seed: int
    compiled: bool
    pause_at: float = math.inf
    resumed: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    saved_at: float = field(default_factory=time.monotonic)
    reported_at: float = -math.inf

    @property
    def checkpoint(self) -> Path:
        """The file to resume from."""
        return self.folder / "checkpoint.pt"

    def autocast(self) -> torch.autocast:
        """Bfloat16 on a GPU, float32 elsewhere."""
        cuda = self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=cuda)

    def generator(self, device: str = "cpu") -> torch.Generator:
        """A fresh generator of the seed."""
        return torch.Generator(device).manual_seed(self.seed)

    def compile(self, layers: Iterable[nn.Module]) -> None:
        """Compile layers one by one: equal ones share their code."""
        if self.compiled:
            for layer in layers:
                layer.compile(dynamic=False)

    def room_for(self, what: str, seconds: float) -> None:
        """Stop before something that cannot be paused, if it does not fit into this call.

        Raises:
            PausedError: then.
        """
        if time.monotonic() + seconds > self.pause_at:
            raise PausedError(f"paused before {what}")

    def restore(self, stage: str, model: nn.Module, optimizer: Any, clock: Clock, draws: Any) -> None:
        """Go on where the checkpoint stands, if it is of this stage."""
        held = self.resumed
        if held.get("stage") != stage:
            return
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        draws.set_state(held["draws"].cpu())
        clock.spent, clock.step = held["spent"], held["step"]
        self.history = held["history"]
        print(f"{stage}: goes on at step {clock.step}, {clock.progress:.0%}", flush=True)

    def after_step(
        self, stage: str, model: nn.Module, optimizer: Any, clock: Clock, draws: Any, facts: dict[str, Any]
    ) -> None:
        """Report and save from time to time; stop if the call's time is over.

        Raises:
            PausedError: then.
        """
        clock.tick()
        now = time.monotonic()
        if now - self.reported_at > REPORT_SECONDS or clock.progress >= 1:
            self.reported_at = now
            row = {"stage": stage, "step": clock.step, "seconds": round(clock.spent, 1)}
            row |= {key: round(float(value), 4) for key, value in facts.items()}
            self.history.append(row)
            print(f"{clock.progress:6.1%} " + " ".join(f"{k} {v}" for k, v in row.items()), flush=True)
        over = now > self.pause_at
        if over or now - self.saved_at > SAVE_SECONDS:
            state = {
                "stage": stage,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "draws": draws.get_state(),
                "spent": clock.spent,
                "step": clock.step,
                "history": self.history,
            }
            part = self.checkpoint.with_suffix(".part")
            torch.save(state, part)
            os.replace(part, self.checkpoint)
            self.saved_at = time.monotonic()
        if over:
            raise PausedError(f"{stage} paused at {clock.progress:.0%}")


def make_optimizer(model: nn.Module, learning_rate: float, device: torch.device) -> torch.optim.Optimizer:
    """AdamW; vectors are not decayed."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=device.type == "cuda")


def step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, learning_rate: float) -> None:
    """One step of the optimizer, gradients clipped at norm 1."""
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def draw(tokens: Tensor, rows: int, length: int, draws: torch.Generator) -> Tensor:
    """Rows from random places of the text: int64 [rows, length]."""
    starts = torch.randint(len(tokens) - length, (rows, 1), generator=draws).to(tokens.device)
    return tokens[starts + torch.arange(length, device=tokens.device)].long()


def next_token_loss(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of states [batch, rows, hidden_size] through an output projection."""
    return F.cross_entropy(F.linear(states, weight).flatten(0, 1).float(), labels.flatten())


def on_device(tokens: Any, device: torch.device) -> Tensor:
    """uint16 tokens as int16 [tokens]; ids are small enough."""
    return torch.from_numpy(np.asarray(tokens).astype(np.int16)).to(device)


def train_target(session: Session, seconds: float) -> tuple[TargetModel, dict[str, Any]]:
    """Train the target, its last part with INT4 experts and long rows.

    Returns:
        The target, and its held-out bits per byte: bf16 and INT4, before and after quantization-aware
        training.
    """
    recipe, corpus, device = session.recipe, session.corpus, session.device
    model = TargetModel(recipe.target_config(corpus.vocab_size))
    model.initialize(session.generator())
    model.to(device)
    session.compile(model.layers)
    loss_of = torch.compile(next_token_loss, dynamic=False) if session.compiled else next_token_loss
    optimizer = make_optimizer(model, recipe.learning_rate, device)
    clock, draws = Clock(seconds, recipe.max_steps), session.generator()
    session.restore("target", model, optimizer, clock, draws)
    clock.last = time.monotonic()
    tokens, held_out = on_device(corpus.train, device), on_device(corpus.held_out, device)
    quantized = False
    while clock.progress < 1:
        if not quantized and clock.progress >= recipe.quantized_from:
            if not any("int4_before" in row for row in session.history):
                session.history.append(both_bits(session, model, held_out, "before"))
            model.set_quantized(True)
            quantized = True
        length = recipe.long_row_tokens if quantized else recipe.row_tokens
        model.train()
        ids = draw(tokens, recipe.batch_tokens // length, length + 1, draws)
        with session.autocast():
            states, _ = model(ids[:, :-1])
            loss = loss_of(states, model.embed_tokens.weight, ids[:, 1:])
        step(model, optimizer, loss, recipe.learning_rate * clock.rate)
        loads = [router.balance(0.0 if quantized else recipe.bias_rate) for router in model.routers()]
        facts = {"loss": loss.detach(), "load": torch.stack(loads).max()}
        session.after_step("target", model, optimizer, clock, draws, facts)
    final = both_bits(session, model, held_out, "after")
    session.history.append(final)
    bits = {key: value for row in session.history for key, value in row.items() if "_before" in key} | final
    return model.eval(), bits | {"steps": clock.step, "tokens": clock.step * recipe.batch_tokens}


def both_bits(session: Session, model: TargetModel, held_out: Tensor, when: str) -> dict[str, float]:
    """Held-out bits per byte with the experts' own values and with INT4."""
    result = {}
    sizes = torch.from_numpy(session.corpus.token_bytes).to(session.device)
    length = session.recipe.row_tokens * 2
    for name, on in (("bf16", False), ("int4", True)):
        model.set_quantized(on)
        with session.autocast(), torch.compiler.set_stance("force_eager"):
            result[f"{name}_{when}"] = bits_per_byte(model.eval(), held_out, sizes, length)
    print(f"held-out bits per byte: {result}", flush=True)
    return result


def write_texts(session: Session, target: Path, seconds: float) -> Tensor:
    """Text by the target for the drafter to learn from: int16 [rows, sample_tokens].

    An eighth of each row is a prompt from the corpus. Rows that loop are dropped.
    """
    recipe, device = session.recipe, session.device
    held = session.folder / "texts.npy"
    if held.exists():
        return torch.from_numpy(np.load(held)).to(device)
    session.room_for("the target writes text", seconds)
    model = load_target_model(target).to(device)
    tokens, draws = on_device(session.corpus.train, device), session.generator()
    noise = session.generator(device.type)
    clock, parts, num_rows = Clock(seconds, recipe.sample_batches), [], 0
    while clock.progress < 1:
        prompts = draw(tokens, recipe.sample_rows, recipe.sample_tokens // 8, draws)
        sampled = torch.rand(len(prompts), generator=draws).to(device) >= GREEDY_SHARE
        rows = continue_rows(model, prompts, recipe.sample_tokens, sampled.float(), noise)
        num_rows += len(rows)
        parts.append(rows[distinct_share(rows) >= recipe.min_distinct].short())
        clock.tick()
    texts = torch.cat(parts)
    np.save(held, texts.cpu().numpy())
    print(f"texts: {len(texts)} of {num_rows} rows kept, {clock.spent:.0f} s", flush=True)
    return texts


def train_drafter(session: Session, target: Path, seconds: float, writing: float) -> DrafterModel:
    """Train the drafter for an exported target.

    Args:
        session: What both loops need.
        target: The target's folder: the drafter learns from the very weights that are shipped.
        seconds: Time to train.
        writing: Time for the target to write the text.
    """
    recipe, device = session.recipe, session.device
    texts = write_texts(session, target, writing)
    frozen = load_target_model(target).to(device).requires_grad_(False)
    model = DrafterModel(recipe.drafter_config(frozen.config))
    model.initialize(session.generator())
    model.to(device)
    session.compile([*frozen.layers, *model.layers])
    loss_of = torch.compile(draft_loss, dynamic=False) if session.compiled else draft_loss
    optimizer = make_optimizer(model, recipe.draft_learning_rate, device)
    clock, draws = Clock(seconds, recipe.max_steps), session.generator()
    session.restore("drafter", model, optimizer, clock, draws)
    clock.last = time.monotonic()
    first = recipe.sample_tokens // 8 - 1
    places = recipe.sample_tokens - model.config.block_size + 1 - first
    while clock.progress < 1:
        rows = torch.randint(len(texts), (recipe.draft_rows,), generator=draws).to(device)
        order = torch.rand(recipe.draft_rows, places, generator=draws).to(device)
        anchors = first + order.topk(recipe.anchors).indices
        with session.autocast():
            logits, found = draft_logits(model, frozen, texts[rows].long(), anchors)
            loss = loss_of(logits, found, recipe.loss_decay)
        right = (logits.detach()[:, :, 0].argmax(-1) == found[:, :, 0]).float().mean()
        step(model, optimizer, loss, recipe.draft_learning_rate * clock.rate)
        facts = {"loss": loss.detach(), "first_token_right": right}
        session.after_step("drafter", model, optimizer, clock, draws, facts)
    return model.eval()
