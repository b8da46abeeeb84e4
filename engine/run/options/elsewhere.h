// Options of other trainers that Sluice lacks. A sentence for each says what to do instead, or that Sluice
// cannot do it. The options are from TRL, transformers' Trainer, PEFT, DeepSpeed, Megatron-LM, unsloth,
// axolotl, torchtune, LLaMA-Factory and launchers. Other names of an option that Sluice has are in the hints
// of its row. Caller: the command line.
#pragma once

#include <cstdint>

#include "engine/run/options/shared_by_rows.h"

namespace sluice {

struct NotHere {
  const char* names;  // with blanks between them
  uint32_t verbs;     // verb_bit()s of the verbs at which they are answered
  const char* instead;
};

inline constexpr NotHere kNotHere[] = {
    // What is trained, and by which loss
    {"dpo dpo-beta kto orpo simpo ppo grpo gspo rlhf cpo reward-model reward-funcs ref-model loss-type beta "
     "pref-beta pref-loss",
     kRuns,
     "Preference and reinforcement learning (DPO, KTO, ORPO, PPO, GRPO) are not there: Sluice trains on "
     "texts "
     "and on answers of chats."},
    {"sft pt stage finetuning-type full-finetuning use-full do-train task-type training-type train-type",
     kRuns,
     "Leave it out: all weights are trained, or with --lora RANK adapters alone, on answers of chats and on "
     "texts."},
    {"label-smoothing label-smoothing-factor neftune-noise-alpha neftune-alpha distillation teacher-model",
     kRuns, "It is not there: the loss is the cross entropy of the next token."},
    {"use-lora use-peft enable-lora peft-type lora-target-linear lora-layers", kRuns,
     "Give --lora RANK, as in --lora 16."},
    {"use-dora lora-plus loraplus-lr-ratio use-loftq loftq-config galore use-galore badam pissa-init ia3 "
     "prompt-tuning prefix-tuning lora-init lora-bias lora-modules-to-save modules-to-save additional-target",
     kRuns, "It is not there: adapters are LoRA's, by --lora, --lora-targets, --lora-alpha and --rslora."},
    {"freeze freeze-layers freeze-trainable-layers freeze-vision-tower unfrozen-parameters trainable-params",
     kRuns, "Give --group-options with `frozen`, as in --group-options embeddings:frozen=yes."},

    // Numbers
    {"load-in-4bit load-in-8bit qlora quantization-bit quantization quantize quantized bnb-4bit-quant-type "
     "bnb-4bit-compute-dtype use-bnb-nested-quant use-nested-quant gptq awq fp8 int8 nf4",
     kRuns,
     "Quantised weights are not there. Leave it out: weights that do not fit into --gpu-mem stay in "
     "--host-mem "
     "or --nvme-dir; --lora RANK trains adapters beside them."},
    {"tf32 attn-implementation use-flash-attn use-flash-attention use-flash-attention-2 flash-attn "
     "flash-attn-2 flash-attention xformers sdp-attention sdpa fused-attention use-liger-kernel "
     "enable-liger-kernel liger use-unsloth torch-compile compile compile-model fused use-fused-adam "
     "fused-adam cuda-graphs",
     kRuns, "Leave it out: kernels are chosen by themselves."},
    {"loss-scale initial-loss-scale dynamic-loss-scale hysteresis", kRuns,
     "Leave it out: with --precision fp16, the factor of the loss is chosen by itself."},

    // Memory
    {"deepspeed deepspeed-config ds-config fsdp fsdp-config fsdp2 use-distributed-optimizer "
     "distributed-optimizer sharding-strategy ddp-backend",
     kRuns,
     "Leave it out: --zero says what ranks share, and --gpu-mem, --host-mem and --nvme-dir where the rest "
     "lives."},
    {"cpu-offload offload-optimizer offload-param offload-params offload-optimizer-device "
     "offload-param-device "
     "zero-offload zero-infinity fsdp-cpu-offload fsdp-offload-params optimizer-cpu-offload "
     "activation-offloading enable-activation-offloading offload-activations",
     kRuns,
     "Leave it out: what does not fit into --gpu-mem goes to --host-mem and --nvme-dir by itself; "
     "--placement "
     "can say more."},
    {"use-gradient-checkpointing gradient-checkpointing-kwargs use-reentrant checkpoint-activations "
     "recompute-activations recompute-method recompute-num-layers",
     kRuns, "Give --recompute, as in --recompute all; auto is the default."},
    {"auto-find-batch-size", kRuns, "Leave it out: --micro-batch auto chooses what fits."},
    {"per-device-eval-batch-size eval-batch-size", kTrain,
     "Leave it out: validation has the batch of training; --val-batches says how many."},

    // Ranks
    {"tp tp-size tensor-parallel tensor-parallel-size tensor-model-parallel-size tensor-parallel-degree",
     kRuns, "Tensor parallelism is not there: ranks share weights by --zero, and experts by --experts-over."},
    {"pp pp-size pipeline-parallel pipeline-parallel-size pipeline-model-parallel-size "
     "pipeline-parallel-degree",
     kRuns,
     "Pipeline parallelism is not there: each rank computes all layers, and ranks share weights by --zero."},
    {"cp cp-size sp sp-size context-parallel context-parallel-size sequence-parallel sequence-parallel-size "
     "sequence-parallel-degree ulysses ring-attention",
     kRuns,
     "Parallelism within a sequence is not there: a rank computes whole sequences, and --waves and "
     "--recompute "
     "make long ones fit."},
    {"dp dp-size data-parallel data-parallel-size ddp", kRuns,
     "Leave it out: ranks divide the --batch, and --gpus says how many there are in this process."},
    {"ep", kRuns, "It is called --experts-over here."},
    {"num-nodes nnodes node-rank num-machines machine-rank hostfile hosts master-addr master-port "
     "main-process-port main-process-ip rdzv-endpoint rdzv-backend local-rank include num-processes",
     kRuns,
     "Leave it out: mpirun or srun starts the ranks of several machines, as in `mpirun --hostfile hosts -np "
     "16 "
     "sluice train ...`."},
    {"ddp-find-unused-parameters overlap-grad-reduce overlap-param-gather ddp-bucket-cap-mb nccl-timeout",
     kRuns, "Leave it out: collectives run beside computes by the plan."},

    // Data
    {"dataset-name hf-dataset hub-dataset dataset-config dataset-config-name dataset-dir", kTrain | kPrepare,
     "Nothing is downloaded: give files of chats or texts by --data."},
    {"dataset-text-field text-field text-column prompt-key messages-key response-key input-key output-key",
     kTrain | kPrepare, "Give --data-keys, as in --data-keys text=content."},
    {"completion-only-loss train-on-responses-only train-on-input mask-history train-on-prompt "
     "train-on-completions",
     kTrain | kPrepare, "Give --train-on: answers (the default), last or all."},
    {"dataset-num-proc preprocessing-num-workers dataset-prepared-path overwrite-cache streaming "
     "dataloader-num-workers num-workers dataloader-pin-memory",
     kTrain | kPrepare, "Leave it out: data are prepared once, into --cache, and read ahead by themselves."},
    {"group-by-length padding-free pad-to-sequence-len pad-to-max-length eval-packing padding-side", kTrain,
     "Leave it out: --packing auto fills sequences with samples, and attention stays within each."},
    {"max-samples max-train-samples num-samples limit-train-batches", kTrain,
     "Give --steps or --epochs, or a shorter file."},
    {"data-seed", kTrain, "It is called --seed here."},
    {"special-tokens add-tokens resize-vocab new-special-tokens pad-token padding-token", kTrain | kPrepare,
     "New tokens are not there: the vocabulary is that of the model."},

    // Models
    {"trust-remote-code model-revision revision hf-token use-auth-token hub-token", kRuns,
     "Leave it out: --model reads files of this machine and runs no code of theirs."},
    {"num-layers n-layer n-layers hidden-size n-embd num-attention-heads n-head n-heads ffn-hidden-size "
     "num-experts vocab-size max-position-embeddings num-query-groups",
     kRuns, "Sizes stand in --model, as in --model gpt2:layers=6,width=384,heads=6 (see --help-all)."},
    {"rope-scaling rope-theta rope-scaling-type yarn", kRuns, "Write it into config.json of --model."},
    {"dropout hidden-dropout attention-dropout", kRuns, "Dropout is not applied: leave it out."},

    // The run
    {"adam8bit adamw-8bit use-8bit-adam adafactor lion muon sgd", kRuns,
     "AdamW is the only optimizer, with fp32 moments."},
    {"save-strategy evaluation-strategy eval-strategy logging-strategy", kTrain,
     "Leave it out: --checkpoint-every, --val-every and --sample-every say how often."},
    {"do-eval metric-for-best-model greater-is-better early-stopping-patience", kTrain,
     "Give --val-data or --val-split, and --keep-best, which goes by the validation loss."},
    {"push-to-hub hub-model-id hub-strategy save-merged-model save-safetensors save-16bit", kTrain,
     "Leave it out: `sluice export` writes a Hugging Face directory from the run."},
    {"run-name experiment-name wandb-name exp-name overwrite-output-dir", kTrain,
     "Leave it out: --out names the run."},
    {"logging-dir tensorboard-dir", kTrain, "Give --tensorboard: the event file is in --out."},
    {"logging-first-step log-level disable-tqdm verbose include-tokens-per-second plot-loss", kTrain,
     "Leave it out: every step is logged, in metrics.jsonl of --out; `sluice report` draws it."},
    {"ema model-ema ema-decay swa", kRuns, "Means of weights are not there."},
};

// The sentence for `name`; nullptr if the table has none for `verb`. - and _ count as equal.
const char* not_here(const std::string& name, Verb verb);

}  // namespace sluice
