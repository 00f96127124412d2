// A recurrent layer as an operator of torch: the minimal gated unit (Zhou et al. 2016) over a
// sequence, with one gate for what is forgotten and what is new.
//
//   f = sigmoid(W_f x + R_f h + b_f)
//   c = tanh(W_c x + R_c (f h) + b_c)
//   h' = (1 - f) h + f c

#include <ATen/ATen.h>
#include <torch/library.h>

#include <vector>

// x [batch, time, in], weight [2 hidden, in], recurrent [2 hidden, hidden], bias [2 hidden];
// gives all states [batch, time, hidden], beginning with zeros.
at::Tensor mgu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& recurrent,
               const at::Tensor& bias) {
  const auto projected = at::linear(x, weight, bias);
  const auto rows = recurrent.chunk(2);
  auto state = at::zeros({x.size(0), recurrent.size(1)}, x.options());
  std::vector<at::Tensor> states;
  for (const auto& step : projected.unbind(1)) {
    const auto parts = step.chunk(2, 1);
    const auto gate = at::sigmoid(parts[0] + at::linear(state, rows[0]));
    const auto candidate = at::tanh(parts[1] + at::linear(gate * state, rows[1]));
    state = (1 - gate) * state + gate * candidate;
    states.push_back(state);
  }
  return at::stack(states, 1);
}

TORCH_LIBRARY(cells, library) {
  library.def("mgu(Tensor x, Tensor weight, Tensor recurrent, Tensor bias) -> Tensor");
}

TORCH_LIBRARY_IMPL(cells, CPU, library) {
  library.impl("mgu", &mgu);
}
