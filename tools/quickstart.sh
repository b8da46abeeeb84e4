#!/bin/bash
# From a fresh clone to a trained model: installs what is missing, builds, gets an English text, and trains a
# byte-level GPT-2 of 10.8 million parameters. The arenas within the budgets below hold less than half of its
# training state (16 bytes a parameter, 174 MB); the rest lives on the drive.
# usage: tools/quickstart.sh
set -euo pipefail
cd "$(dirname "$0")/.."

model=gpt2:layers=6,width=384,heads=6,vocab=256,context=256
device_memory=24MiB
host_memory=112MiB
batch=8
steps=300
learning_rate=1e-3
warmup=10
validate_every=50
directory=out/quickstart
threads=$(nproc)
threads=$((threads < 4 ? threads : 4))  # ops need more workspace with more of them, and this budget is small

tools/setup.sh --quickstart
tools/build.sh local sluice

mkdir -p "$directory/nvme"
text=$directory/bible.txt
if [[ ! -s $text ]]; then
  echo "quickstart: writing the King James text to $text"
  PATH=$PATH:/usr/games bible -f gen1:1-rev22:21 < /dev/null > "$text.part"
  mv "$text.part" "$text"
fi
bytes=$(stat --format=%s "$text")
head --bytes=$((bytes - bytes / 20)) "$text" > "$directory/train.txt"  # the last 5 % are for validation
tail --bytes=$((bytes / 20)) "$text" > "$directory/val.txt"

run=$directory/run exported=$directory/exported
for ((i = 2; ; ++i)); do  # an earlier quickstart's run may have gone on since: it stays
  if [[ ! -e $run && ! -e $exported ]]; then break; fi
  run=$directory/run-$i exported=$directory/exported-$i
done
echo "quickstart: training in $run"
SECONDS=0
build/local/sluice train --model "$model" --device cpu \
  --data "$directory/train.txt" --val-data "$directory/val.txt" --val-every "$validate_every" \
  --batch "$batch" --steps "$steps" --lr "$learning_rate" --warmup "$warmup" \
  --threads "$threads" --gpu-mem "$device_memory" --host-mem "$host_memory" --nvme-dir "$directory/nvme" \
  --out "$run"
seconds=$SECONDS
build/local/sluice export --from "$run" --to "$exported"

echo
echo "quickstart: trained for $seconds s"
echo "  checkpoint        $run"
echo "  metrics           $run/metrics.jsonl"
echo "  exported weights  $exported"
echo "  go on             build/local/sluice train --out $run --resume auto --steps $((2 * steps))"
echo "  next              export PATH=$PWD/build/local:\$PATH, then sluice train --help"
