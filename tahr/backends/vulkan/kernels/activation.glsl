// Activations of gated layers, by number.
const uint SILU = 0, GELU_TANH = 1, GELU = 2, SIGMOID = 3, RELU2 = 4, CLAMPED_SWIGLU = 5, QUICK_GELU = 6;

float sigmoid_of(float x) { return 1 / (1 + exp(-x)); }

// Drivers' own may be inexact.
float tanh_of(float x) {
  const float e = exp(-2 * abs(x));
  return sign(x) * (1 - e) / (1 + e);
}

// Within 1.5e-7 of the error function: Abramowitz and Stegun 7.1.26.
float erf_of(float x) {
  const float t = 1 / (1 + 0.3275911 * abs(x));
  const float sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return sign(x) * (1 - sum * exp(-x * x));
}

float activated(uint act, float x) {
  if (act == SILU) return x * sigmoid_of(x);
  if (act == GELU_TANH) return 0.5 * x * (1 + tanh_of(0.7978845608 * (x + 0.044715 * x * x * x)));
  if (act == GELU) return 0.5 * x * (1 + erf_of(x * 0.70710678118));
  if (act == SIGMOID) return sigmoid_of(x);
  if (act == QUICK_GELU) return x * sigmoid_of(1.702 * x);
  const float positive = max(x, 0);
  return positive * positive;
}

float activated_with(uint act, float gate, float up) {
  if (act != CLAMPED_SWIGLU) return activated(act, gate) * up;
  const float g = min(gate, 7);
  return g * sigmoid_of(1.702 * g) * (clamp(up, -7, 7) + 1);
}
