"""A decoded text with everything that happened on the way."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kdnb.arrays import Int32
from kdnb.errors import TraceError
from kdnb.tokenizer import Tokenizer
from kdnb.trace import FORMAT_VERSION, STAGES, RoundTrace, read_array

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
        from kdnb.view.tables import run_table

        return run_table(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from kdnb.view import bundle

        return bundle(self)

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
            of depth 1, 2, ...); min_gap (smallest margin of any choice
            that had an alternative) and prefill_min_gap (of the first); stop_reason; times in
            microseconds: prefill_us, times_us per stage, wall_us; tokens_per_second. What is not known
            is absent.
        """
        emitted = [len(step.accepted) for step in self.rounds]
        gaps = [self.prefill_min_gap, *(step.min_gap for step in self.rounds)]
        known = [gap for gap in gaps if gap is not None and np.isfinite(gap)]
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
        if self.prefill_min_gap is not None and np.isfinite(self.prefill_min_gap):
            summary["prefill_min_gap"] = self.prefill_min_gap
        summary["stop_reason"] = self.stop_reason
        if self.prefill_us is not None:
            summary["prefill_us"] = self.prefill_us
        totals = {
            stage: sum(step.times_us.get(stage, 0.0) for step in self.rounds)
            for stage in STAGES
            if any(stage in step.times_us for step in self.rounds)
        }
        if totals:
            summary["times_us"] = totals
        if self.wall_us:
            summary["wall_us"] = self.wall_us
            summary["tokens_per_second"] = len(self.token_ids) / self.wall_us * 1e6
        return summary

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it back.

        What is not known is absent; text without a tokenizer is null.

        Raises:
            TraceError: if a round holds NaN.
        """
        data: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "prompt_ids": self.prompt_ids.tolist(),
            "token_ids": self.token_ids.tolist(),
            "text": self.text,
        }
        rounds = []
        for index, step in enumerate(self.rounds):
            try:
                rounds.append(step.to_json())
            except TraceError as error:
                raise TraceError(f"round {index}: {error}") from None
        data |= {"rounds": rounds, "summary": self.summary(), "settings": dict(self.settings)}
        texts = self._known_texts()
        if texts:
            data["token_texts"] = texts
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Run":
        """Undo `to_json`. Of the summary only what the rounds do not say is read.

        Raises:
            TraceError: if the object is no run, of another format version, or a round is broken; the
                message names the round and the field.
        """
        if not isinstance(data, Mapping):
            raise TraceError(f"the trace has type {type(data).__name__}; it must be a JSON object.")
        version = data.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise TraceError(
                f"the trace has format_version {version!r} but this kdnb reads {FORMAT_VERSION}; "
                "use the version of kdnb that wrote it."
            )
        absent = [name for name in ("prompt_ids", "token_ids", "rounds") if name not in data]
        if absent:
            raise TraceError(f"the trace has no {', no '.join(absent)}; is it one that kdnb wrote?")
        if not isinstance(data["rounds"], list):
            raise TraceError(f"rounds has type {type(data['rounds']).__name__}; it must be a list.")
        rounds = []
        for index, step in enumerate(data["rounds"]):
            try:
                rounds.append(RoundTrace.from_json(step))
            except TraceError as error:
                raise TraceError(f"round {index}: {error}") from None
        objects = {}
        for name in ("summary", "settings", "token_texts"):
            objects[name] = data.get(name, {})
            if not isinstance(objects[name], Mapping):
                raise TraceError(f"{name} has type {type(objects[name]).__name__}; it must be a JSON object.")
        if not isinstance(data.get("text"), str | None):
            raise TraceError(f"text has type {type(data['text']).__name__}; it must be a string.")
        summary = objects["summary"]
        return cls(
            prompt_ids=read_array(data, "prompt_ids", np.int32),
            token_ids=read_array(data, "token_ids", np.int32),
            rounds=rounds,
            stop_reason=_stop_reason(summary),
            settings=dict(objects["settings"]),
            stored_text=data.get("text"),
            token_texts={str(key): str(text) for key, text in objects["token_texts"].items()},
            prefill_us=_number(summary, "prefill_us"),
            prefill_min_gap=_number(summary, "prefill_min_gap"),
            wall_us=_number(summary, "wall_us"),
        )

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
        write_whole(path, json.dumps(self.to_json(), allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Run":
        """Read a run from a file.

        Raises:
            TraceError: if it is missing, not JSON, or not a run; the message names the file.
        """
        data = read_trace_json(path)
        try:
            return cls.from_json(data)
        except TraceError as error:
            raise TraceError(f"{str(path)!r}: {error}") from None

    def _known_texts(self) -> dict[str, str]:
        """Visible forms of all tokens that occur, so that a file can be shown without the model."""
        if self.tokenizer is None:
            return dict(self.token_texts)
        ids = {*self.prompt_ids.tolist(), *self.token_ids.tolist()}
        for step in self.rounds:
            ids |= {*step.tree.token_ids.tolist(), step.bonus_id}
            for array in (step.next_ids, step.draft_top_ids, step.target_top_ids):
                if array is not None:
                    ids |= set(array.ravel().tolist())
        return {str(i): self.tokenizer.token_text(i) for i in sorted(ids)}


def read_trace_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
        TraceError: if it is missing or no JSON; the message names the file.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{str(path)!r} is not JSON: {error}.") from None


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file that appears whole or not at all, whatever happens meanwhile.

    Raises:
        TraceError: if it cannot be written.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            part.write_text(text, encoding="utf-8", newline="\n")
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{str(path)!r} cannot be written: {error.strerror or error}.") from None


def _stop_reason(summary: Mapping[str, Any]) -> str:
    reason = summary.get("stop_reason", "length")
    if reason not in STOP_REASONS:
        raise TraceError(f"stop_reason is {reason!r}; it must be one of {', '.join(STOP_REASONS)}.")
    return str(reason)


def _number(summary: Mapping[str, Any], name: str) -> float | None:
    if name not in summary:
        return None
    return float(read_array(summary, name, np.float64, axes=0))
