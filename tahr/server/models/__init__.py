"""The models a server serves, and the engines behind them."""
