// Writes a trained adapter, its base and what they compute to a folder: peft_test.py reads them with Python's peft.
#include <cstdio>
#include <string>

#include "cohort/trainer/adapter/lora.h"
#include "cohort/trainer/adapter/lora_files.h"
#include "cohort/trainer/nn/embedding.h"
#include "cohort/trainer/nn/linear.h"
#include "cohort/trainer/state/checkpoint/checkpoint_file.h"
#include "torch/torch.h"

namespace cohort::trainer {
namespace {

struct Net : torch::nn::Module {
  Net() {
    tokens = register_module("tokens", nn::Embedding(11, 6));
    up = register_module("up", nn::Linear(6, 10));
    down = register_module("down", nn::Linear(nn::LinearOptions(10, 4).bias(false)));
  }
  at::Tensor forward(const at::Tensor& codes) { return down(torch::tanh(up(tokens(codes)))); }
  nn::Embedding tokens{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};

void Export(const std::string& folder, bool use_rslora) {
  torch::manual_seed(1);
  Net net;
  std::vector<FilePiece> pieces;
  for (const auto& item : net.named_parameters()) {
    const at::Tensor values = item.value().detach().clone();
    pieces.push_back({.key = item.key(), .shape = values.sizes().vec(), .data = values});
  }
  Lora lora(net, {.r = 3, .lora_alpha = 6, .use_rslora = use_rslora, .target_modules = {"tokens", "up", "down"}});
  torch::optim::AdamW optimizer(lora.parameters(), torch::optim::AdamWOptions(0.05));
  const at::Tensor codes = torch::arange(22).remainder(11).view({2, 11});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    net.forward(codes).pow(2).mean().backward();
    optimizer.step();
  }
  save_pretrained(lora, folder + "/adapter");
  const at::Tensor output = net.forward(codes).detach().contiguous();
  pieces.push_back({.key = "output", .shape = output.sizes().vec(), .data = output});
  WriteTensors(folder + "/base.safetensors", pieces, FilePlace::kAlone);
}

}  // namespace
}  // namespace cohort::trainer

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: trainer_lora_export FOLDER plain|rslora\n"), 2;
  cohort::trainer::Export(argv[1], std::string(argv[2]) == "rslora");
  return 0;
}
