"""The matplotlib figures: their data, and that they touch no global state."""

import io
import subprocess
import sys

import pytest

from kdnb.errors import ShapeError, TraceError
from kdnb.view.figures import acceptance_by_depth, emitted_per_round, time_per_stage
from tests.support.traces import light_round, small_run


def test_acceptance_by_depth_plots_the_shares():
    figure = acceptance_by_depth([small_run(), small_run(rounds=[light_round()])], ["both", "first"])
    lines = figure.axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == [[0.5, 0.5], [1.0, 1.0]]
    assert list(lines[0].get_xdata()) == [1, 2]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["both", "first"]
    with pytest.raises(ShapeError, match="labels has 1 names but there are 2 runs"):
        acceptance_by_depth([small_run(), small_run()], ["one"])


def test_emitted_per_round_stacks_drafts_and_bonus():
    axes = emitted_per_round(small_run()).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [2, 0, 1, 1]
    assert axes.lines[0].get_ydata()[0] == 2.0


def test_time_per_stage_shows_medians_of_what_was_recorded():
    run = small_run(rounds=[light_round(times_us={"draft": t, "verify": 10 * t}) for t in (1.0, 2.0, 9.0)])
    axes = time_per_stage(run).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [20.0, 2.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["verify", "draft"]
    with pytest.raises(TraceError, match="no times to draw"):
        time_per_stage(small_run(rounds=[light_round(times_us={})]))


@pytest.mark.parametrize("draw", [emitted_per_round, time_per_stage])
def test_a_run_without_rounds(draw):
    with pytest.raises(TraceError, match="no rounds to draw"):
        draw(small_run(rounds=[]))


def test_a_figure_can_be_saved_and_pyplot_is_never_imported():
    code = (
        "import sys; from kdnb.view.figures import emitted_per_round; "
        "from tests.support.traces import small_run; import io; "
        "emitted_per_round(small_run()).savefig(io.BytesIO()); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    out = io.BytesIO()
    emitted_per_round(small_run()).savefig(out, format="svg")
    assert b"<svg" in out.getvalue()
