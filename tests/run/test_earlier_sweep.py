"""A grid without `hydra.sweep.dir` after an earlier one of the same name."""

from vit.run import main
from vit.run.multirun.sweeping import earlier_sweep, remark_on_earlier


def test_a_new_grid_names_the_earlier_one_and_how_to_continue_it(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vit.run.multirun.run_of_sweep.train_in_new_process", lambda overrides: 1)
    main(["-m", "seed=0,1"])
    assert "earlier sweep" not in capfd.readouterr().out
    first, = (tmp_path / "runs" / "digits").glob("*_sweep")
    main(["-m", "seed=0,1"])
    printed = capfd.readouterr().out.replace("\n", "")
    assert f"runs/digits/{first.name} is an earlier sweep, whose runs this one does not reuse" in printed
    assert "hydra.sweep.dir=DIR" in printed and "resume=auto" in printed
    main(["-m", "seed=0,1", "hydra.sweep.dir=out"])
    assert "earlier sweep" not in capfd.readouterr().out


def test_the_newest_earlier_sweep_is_named(tmp_path):
    for name in ("2026-01-01_00-00-00_sweep", "2026-01-02_00-00-00_sweep", "2026-01-03_00-00-00_sweep", "2026-02-01"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sweep.json").touch()
    earlier = earlier_sweep(tmp_path / "2026-01-03_00-00-00_sweep")
    assert earlier == tmp_path / "2026-01-02_00-00-00_sweep"
    assert "whose finished runs this one does not reuse" in remark_on_earlier(earlier, resuming=True)


def test_a_sweep_that_stopped_before_its_first_run_is_none(tmp_path):
    (tmp_path / "2026-01-01_00-00-00_sweep").mkdir()
    (tmp_path / "2026-01-01_00-00-00_sweep" / "multirun.yaml").touch()
    assert earlier_sweep(tmp_path / "2026-01-02_00-00-00_sweep") is None
