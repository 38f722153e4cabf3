"""How long it takes until nothing is under-replicated."""

from quire_bookie.recovery.forecast import WINDOW_S, Forecast


def test_the_end_follows_from_what_was_done() -> None:
    forecast = Forecast()
    assert forecast.eta_s() == 0
    forecast.saw(100, 0.0)
    assert forecast.eta_s() == -1
    forecast.saw(80, 20.0)
    assert forecast.eta_s() == 81
    forecast.saw(79, 20.5)
    assert forecast.eta_s() == 81, "looks in quick succession say nothing new"
    forecast.saw(0, 21.0)
    assert forecast.eta_s() == 0


def test_new_trouble_begins_anew_and_old_looks_are_forgotten() -> None:
    forecast = Forecast()
    forecast.saw(100, 0.0)
    forecast.saw(50, 100.0)
    forecast.saw(500, 200.0)
    assert forecast.eta_s() == -1
    forecast.saw(400, 300.0)
    assert forecast.eta_s() == 401
    forecast.saw(400, 300.0 + WINDOW_S)
    assert forecast.eta_s() == -1, "nothing was done for a quarter of an hour"
