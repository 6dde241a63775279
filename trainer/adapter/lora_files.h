// Adapters alone as files, in PEFT's form, so that Python's peft reads them and we read peft's:
//
//   directory/adapter_config.json         {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": [...], ...}
//   directory/adapter_model.safetensors   "base_model.model.<layer>.lora_A.weight": [r, in], ...lora_B.weight: [out, r]
//
// Format: huggingface/peft, src/peft/utils/save_and_load.py.
#pragma once

#include <chrono>
#include <string>

#include "cohort/comm/communicator.h"
#include "cohort/trainer/adapter/lora.h"

namespace cohort::trainer {

// Writes the adapters of `lora` as `directory`, which is made if need be. Each file appears when it is complete. The
// matrices are put together from all ranks of `world`: split ones, those that FSDP has sharded, and those of other
// stages of a pipeline. Rank 0 writes. Collective; blocks. Throws DistributedError on every rank when rank 0 cannot
// write, and under SummonFullParams. Throws c10::Error where `world` lacks ranks that have parts.
void save_pretrained(const Lora& lora, comm::Communicator& world, const std::string& directory);
// The same for a process alone. Throws c10::Error where other ranks have parts of a matrix.
void save_pretrained(const Lora& lora, const std::string& directory);

// Reads adapter_config.json. Throws DistributedError kNotFound, or kDataLoss that names the file and its defect. Throws
// c10::Error for an adapter that is no LoRA, or has what LoraConfig cannot say (DoRA, trained biases).
LoraConfig ReadLoraConfig(const std::string& directory);

// Fills the adapters of `lora` from `directory`. Each rank takes its part. All ranks call it alike, because it gives
// modules their shards back (Lora::Reshard); it sends nothing. Throws as ReadLoraConfig does. Throws c10::Error, before
// anything is changed, under SummonFullParams, for another r or scale, and for a matrix that is missing, unknown to the
// model, or of other sizes.
void load_adapter(Lora& lora, const std::string& directory);
// The same on all ranks or on none: when a rank can't, every rank of `world` throws DistributedError with that rank's
// cause, and adapters are as before. So too when the ranks' files differ. Stages of a pipeline take their matrices out
// of the whole model's. Collective; blocks.
void load_adapter(Lora& lora, comm::Communicator& world, const std::string& directory);

}  // namespace cohort::trainer
