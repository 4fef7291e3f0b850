#!/bin/sh
# From nothing to a trained, measured and inspected translator. Run by `make demo`; every line is a command to try.
# sh examples/demo.sh [FOLDER] [de|zh]
set -eu
out=${1:-runs/demo}
language=${2:-de}

echo "1. A corpus, made up by a small grammar: 40,000 English sentences with their translation (en-$language)"
heedful corpus mini --pair "en-$language" --lines 40000 --out "$out/corpus"

echo "2. Training, about three minutes on two cores. The grammar makes no mistakes, so there is no noise to guard against"
heedful train "$out/corpus/train.tsv" --valid "$out/corpus/valid.tsv" --out "$out/model" --recipe tiny \
    data.source_language=en data.target_language="$language" \
    model.encoder.dropout=0 model.decoder.dropout=0 training.label_smoothing=0 \
    training.batch_tokens=1024 training.steps=1300 training.warmup=100 training.learning_rate=0.003 \
    training.schedule=linear training.validate_every=250 training.save_every=250 training.samples=2

echo "3. How good is it? Every test sentence puts words together that training never did"
heedful evaluate "$out/model" "$out/corpus/test.tsv"

echo '4. A few sentences, each word with the English word it looks at. What does "it" mean? A translator has to know'
heedful translate "$out/model" --format words <<'END'
The animal did not cross the street because it was too tired.
The animal did not cross the street because it was too wide.
The farmer gives the child a sour apple.
We know that the teacher called the boy yesterday.
END

echo "5. What the heads look at, and how the training went"
sentence="The animal did not cross the street because it was too wide."
heedful plot attention "$out/model" "$sentence" --out "$out/attention.png"
heedful plot attention "$out/model" "$sentence" --head aligner --out "$out/alignment.png"
heedful plot training "$out/model"

cat <<END

Try next, with .venv/bin in front of heedful or the environment activated (. .venv/bin/activate):

  echo "The dog sees a red ball." | heedful translate $out/model
  heedful serve $out/model      # a page on http://127.0.0.1:8000 that shows every head at work
  heedful train your-pairs.tsv --out runs/my-model --budget 20m
END
