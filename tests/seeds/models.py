"""Small models with random weights, of the architectures and with the folder names that the posts have."""

import json
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TINY_TOKENIZER = ROOT / "tests/repositories/seed/tokenizer/1/tokenizer.json"
TINY_EMBEDDER = ROOT / "tests/repositories/seed/embedding_model/1/bio-bert-embedder.onnx"

# More than the id of the language that a post forces its translations to begin with.
TRANSLATOR_TOKENS = 128112


def tokenizer(folder):
    """Saves a tokenizer of BERT's kind, as `save_pretrained` does."""
    from transformers import PreTrainedTokenizerFast

    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    made = PreTrainedTokenizerFast(tokenizer_file=str(TINY_TOKENIZER), model_max_length=64, **special)
    made.model_input_names = ["input_ids", "attention_mask"]
    made.save_pretrained(folder)


def embedder(folder):
    """The embedder of the project's own tests; its output is called 3391, like the post's."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(TINY_EMBEDDER, folder / TINY_EMBEDDER.name)


def classifier(file):
    """A RoBERTa that classifies, in TorchScript: traced with one row of 100 tokens and a mask, as the post does. Returns the model."""
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification

    class Adapter(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=3,
        max_position_embeddings=120, initializer_range=0.5,
    )
    adapted = Adapter(RobertaForSequenceClassification(config).eval())
    ids = torch.randint(0, config.vocab_size, (1, 100))
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.jit.save(torch.jit.trace(adapted, (ids, torch.ones_like(ids))), file)
    return adapted


def feature_extractor(folder):
    """A folder that the pipeline `feature-extraction` loads: an XLM-RoBERTa and a tokenizer."""
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaModel

    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=80,
    )
    XLMRobertaModel(config).save_pretrained(folder)
    tokenizer(folder)


def translator(folder, tokens):
    """An M2M100 in ONNX, with the names of files that quantizing gives; its tokenizer goes to `tokens`."""
    import torch
    from optimum.exporters.onnx import main_export
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    torch.manual_seed(0)
    config = M2M100Config(
        vocab_size=TRANSLATOR_TOKENS, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=80, max_length=12,
    )
    plain, exported = folder.parent / "plain", folder.parent / "exported"
    model = M2M100ForConditionalGeneration(config)
    model.generation_config.max_length = 12
    model.save_pretrained(plain)
    tokenizer(plain)
    main_export(plain, output=exported, task="text2text-generation-with-past", do_validation=False, no_post_process=True)
    folder.mkdir(parents=True)
    for name in ("encoder_model", "decoder_model", "decoder_with_past_model"):
        shutil.copy(exported / f"{name}.onnx", folder / f"{name}_quantized.onnx")
    for name in ("config.json", "generation_config.json"):
        shutil.copy(exported / name, folder / name)
    (folder / "ort_config.json").write_text(json.dumps({"one_external_file": True}))
    tokenizer(tokens)
    shutil.rmtree(plain)
    shutil.rmtree(exported)
