#include "cohort/trainer/parallelize/plan_text.h"

#include <optional>

#include "torch/torch.h"

namespace cohort::trainer {

std::string ToText(const FullyShardedDataParallelOptions& options) {
  const MixedPrecision& types = options.mixed_precision;
  const auto type = [](const std::optional<c10::ScalarType>& given) {
    return given.has_value() ? c10::str(*given) : std::string("unset");
  };
  const std::string ranks =
      options.reshard_after_forward.has_value() ? std::to_string(options.reshard_after_forward->ranks()) : "unset";
  const std::string device = options.device_id.has_value() ? c10::DeviceTypeName(options.device_id->type()) : "unset";
  return c10::str("fsdp: strategy ", static_cast<int>(options.sharding_strategy), ", reshard_after_forward ", ranks,
                  ", param_dtype ", type(types.param_dtype), ", reduce_dtype ", type(types.reduce_dtype),
                  ", output_dtype ", type(types.output_dtype), ", cast_forward_inputs ", types.cast_forward_inputs,
                  ", backward_prefetch ", static_cast<int>(options.backward_prefetch), ", forward_prefetch ",
                  options.forward_prefetch, ", reduce_over_world ", options.reduce_over_world, ", cpu_offload ",
                  options.cpu_offload, ", device ", device, ", sync_module_states ", options.sync_module_states, "\n");
}

std::string ToText(const DistributedDataParallelOptions& options) {
  return c10::str("ddp: bucket bytes ", options.buckets.first_bytes, ", then ", options.buckets.cap_bytes,
                  ", broadcast_buffers ", options.broadcast_buffers, ", gradient_as_bucket_view ",
                  options.gradient_as_bucket_view, ", find_unused_parameters ", options.find_unused_parameters,
                  ", static_graph ", options.static_graph, ", check_replicas_every ", options.check_replicas_every,
                  ", parts ", options.parts.size(), ", ignored_parameters ", options.ignored_parameters.size(), "\n");
}

}  // namespace cohort::trainer
