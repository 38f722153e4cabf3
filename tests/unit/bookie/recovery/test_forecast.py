"""Tests the estimated time until no ledger is under-replicated."""

from quire_bookie.recovery.forecast import WINDOW_S, Forecast


def test_the_remaining_time_follows_from_the_rate_so_far() -> None:
    forecast = Forecast()
    assert forecast.eta_s() == 0
    forecast.record(100, 0.0)
    assert forecast.eta_s() == -1
    forecast.record(80, 20.0)
    assert forecast.eta_s() == 81
    forecast.record(79, 20.5)
    assert forecast.eta_s() == 81, "samples in quick succession are ignored"
    forecast.record(0, 21.0)
    assert forecast.eta_s() == 0


def test_a_rise_restarts_the_forecast_and_old_samples_are_dropped() -> None:
    forecast = Forecast()
    forecast.record(100, 0.0)
    forecast.record(50, 100.0)
    forecast.record(500, 200.0)
    assert forecast.eta_s() == -1
    forecast.record(400, 300.0)
    assert forecast.eta_s() == 401
    forecast.record(400, 300.0 + WINDOW_S)
    assert forecast.eta_s() == -1, "nothing was done for a quarter of an hour"
