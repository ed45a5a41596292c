"""A decoded text with everything that happened on the way."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kdnb.arrays import Int32
from kdnb.errors import TraceError
from kdnb.tokenizer import Tokenizer
from kdnb.trace import FORMAT_VERSION, STAGES, RoundTrace

STOP_REASONS = ("stop_id", "length", "interrupted")


@dataclass(frozen=True, eq=False)
class Run:
    """The outcome of `generate`.

    Args:
        prompt_ids: int32; the prompt.
        token_ids: int32; the new tokens. The first came from the prompt's own logits.
        rounds: What each round did.
        stop_reason: "stop_id", "length" or "interrupted".
        settings: What was asked for: target, drafter, policy, verify_rule, node_budget, seed, ...
        tokenizer: The target's, or None.
        stored_text: The text of a run that was read from a file.
        token_texts: Visible form of tokens by id, of a run that was read from a file.
        prefill_us: Microseconds the prompt took.
        prefill_min_gap: Margin by which the first token was chosen.
        wall_us: Microseconds of the whole decoding.
    """

    prompt_ids: Int32
    token_ids: Int32
    rounds: Sequence[RoundTrace]
    stop_reason: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    stored_text: str | None = None
    token_texts: Mapping[str, str] = field(default_factory=dict)
    prefill_us: float | None = None
    prefill_min_gap: float | None = None
    wall_us: float | None = None

    def __repr__(self) -> str:
        return (
            f"Run(num_tokens={len(self.token_ids)}, num_rounds={len(self.rounds)}, "
            f"stop_reason={self.stop_reason!r})"
        )

    def __str__(self) -> str:
        from kdnb.view.text import run_table

        return run_table(self)

    @property
    def text(self) -> str | None:
        """The new tokens as text; None without a tokenizer."""
        if self.tokenizer is None:
            return self.stored_text
        return self.tokenizer.decode(self.token_ids)

    def summary(self) -> dict[str, Any]:
        """What the run amounts to.

        Returns:
            num_tokens; num_rounds; target_forwards (the prompt and one per round);
            mean_emitted_per_round (accepted drafts and bonus token, before any cut);
            mean_accepted_per_round; expected_accepted_per_round (mean over rounds of the sum of node
            probabilities, where trees have scores); accepted_by_depth (share of rounds that kept a node
            of depth 1, 2, ...); min_gap (smallest margin of any choice); stop_reason; times in
            microseconds: prefill_us, times_us per stage, wall_us; tokens_per_second. What is not known
            is absent.
        """
        emitted = [len(step.accepted) for step in self.rounds]
        gaps = [self.prefill_min_gap, *(step.min_gap for step in self.rounds)]
        known = [gap for gap in gaps if gap is not None]
        summary: dict[str, Any] = {
            "num_tokens": len(self.token_ids),
            "num_rounds": len(self.rounds),
            "target_forwards": len(self.rounds) + 1,
        }
        if emitted:
            summary["mean_emitted_per_round"] = float(np.mean(emitted))
            summary["mean_accepted_per_round"] = float(np.mean(emitted)) - 1
            summary["accepted_by_depth"] = [
                float(np.mean([count > depth for count in emitted])) for depth in range(1, max(emitted))
            ]
        scores = [step.tree.scores for step in self.rounds]
        if scores and all(score is not None for score in scores):
            expected = [float(np.exp(score[1:]).sum()) for score in scores if score is not None]
            summary["expected_accepted_per_round"] = float(np.mean(expected))
        if known:
            summary["min_gap"] = min(known)
        summary["stop_reason"] = self.stop_reason
        if self.prefill_us is not None:
            summary["prefill_us"] = round(self.prefill_us, 1)
        totals = {
            stage: round(sum(step.times_us.get(stage, 0.0) for step in self.rounds), 1)
            for stage in STAGES
            if any(stage in step.times_us for step in self.rounds)
        }
        if totals:
            summary["times_us"] = totals
        if self.wall_us:
            summary["wall_us"] = round(self.wall_us, 1)
            summary["tokens_per_second"] = round(len(self.token_ids) / self.wall_us * 1e6, 1)
        return summary

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it back."""
        data: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "prompt_ids": self.prompt_ids.tolist(),
            "token_ids": self.token_ids.tolist(),
            "text": self.text,
            "rounds": [step.to_json() for step in self.rounds],
            "summary": self.summary(),
            "settings": dict(self.settings),
        }
        if self.tokenizer is not None:
            data["token_texts"] = {str(i): self.tokenizer.token_text(i) for i in self._used_ids()}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Run":
        """Undo `to_json`.

        Raises:
            TraceError: if the object is no run, of another format version, or a round is broken.
        """
        if not isinstance(data, Mapping):
            raise TraceError(f"the trace holds a {type(data).__name__}; it must be a JSON object.")
        version = data.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise TraceError(
                f"the trace has format_version {version!r} but this kdnb reads {FORMAT_VERSION}."
            )
        missing = [name for name in ("prompt_ids", "token_ids", "rounds") if name not in data]
        if missing:
            raise TraceError(f"the trace has no {', no '.join(missing)}; is it a kdnb run?")
        rounds = []
        for index, step in enumerate(data["rounds"]):
            try:
                rounds.append(RoundTrace.from_json(step))
            except TraceError as error:
                raise TraceError(f"rounds[{index}]: {error}.") from None
        summary = data.get("summary", {})
        try:
            return cls(
                prompt_ids=np.array(data["prompt_ids"], dtype=np.int32),
                token_ids=np.array(data["token_ids"], dtype=np.int32),
                rounds=rounds,
                stop_reason=summary.get("stop_reason", "length"),
                settings=dict(data.get("settings", {})),
                stored_text=data.get("text"),
                token_texts=dict(data.get("token_texts", {})),
                prefill_us=summary.get("prefill_us"),
                prefill_min_gap=summary.get("min_gap"),
                wall_us=summary.get("wall_us"),
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise TraceError(f"the trace cannot be used: {error}.") from None

    def token_text(self, token_id: int) -> str:
        """One token in visible form; its id where no tokenizer is known."""
        if self.tokenizer is not None:
            return self.tokenizer.token_text(token_id)
        return self.token_texts.get(str(token_id), str(token_id))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run as JSON; the file appears whole or not at all.

        Raises:
            TraceError: if it cannot be written.
        """
        target = Path(path)
        try:
            with tempfile.NamedTemporaryFile(
                "w", dir=target.parent, prefix=target.name, delete=False, encoding="utf-8"
            ) as file:
                json.dump(self.to_json(), file, allow_nan=False)
            os.replace(file.name, target)
        except OSError as error:
            raise TraceError(f"{str(target)!r} cannot be written: {error.strerror}.") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Run":
        """Read a run from a file.

        Raises:
            TraceError: if it is missing, not JSON, or not a run.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise TraceError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise TraceError(f"{str(path)!r} is not JSON: {error}.") from None
        return cls.from_json(data)

    def _used_ids(self) -> list[int]:
        ids = {*self.prompt_ids.tolist(), *self.token_ids.tolist()}
        for step in self.rounds:
            ids |= {*step.tree.token_ids.tolist(), step.bonus_id}
            if step.next_ids is not None:
                ids |= set(step.next_ids.tolist())
        return sorted(ids)
