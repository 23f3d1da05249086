"""Model folders of further architectures, each small and with random weights: the graph takes what its library gives it, and no more."""

import torch
import transformers
from tokenizers import processors

from folders import (
    BERT, LONGEST, PLAIN, SIZE, Folder, byte_level, eager, export_by_torchs_default, folder, normalize, pooling, rewrite, roberta_tokenizer,
    sentence, unigram, wordpiece,
)


def mean(path, model, tokenizer, inputs=PLAIN, *modules):
    sentence(path, model, tokenizer, [pooling("mean"), *modules], inputs=inputs)
    return Folder("embed", inputs, ops="pool:mean")


def sized(kind, tokenizer, **more):
    config = getattr(transformers, f"{kind}Config")
    usual = dict(vocab_size=len(tokenizer), max_position_embeddings=LONGEST, pad_token_id=tokenizer.pad_token_id, **SIZE)
    return eager(config(**{**usual, **more}))


@folder
def mpnet(path):
    tokenizer = roberta_tokenizer()
    config = sized("MPNet", tokenizer, max_position_embeddings=LONGEST + 2)
    return mean(path, transformers.MPNetModel(config, add_pooling_layer=False), tokenizer)


@folder
def electra(path):
    tokenizer = wordpiece()
    return mean(path, transformers.ElectraModel(sized("Electra", tokenizer, embedding_size=16)), tokenizer, BERT)


@folder
def albert(path):
    tokenizer = unigram("[CLS] $A [SEP]", [("[CLS]", 0), ("[SEP]", 2)])
    return mean(path, transformers.AlbertModel(sized("Albert", tokenizer, embedding_size=16)), tokenizer, PLAIN)


@folder
def deberta(path):
    tokenizer = unigram("<s> $A </s>", [("<s>", 0), ("</s>", 2)])
    options = dict(relative_attention=True, position_biased_input=False, pos_att_type=["p2c", "c2p"], max_relative_positions=-1, position_buckets=32)
    config = sized("DebertaV2", tokenizer, type_vocab_size=0, norm_rel_ebd="layer_norm", share_att_key=True, **options)
    known = mean(path, transformers.DebertaV2Model(config), tokenizer)
    # Fields of the published folders.
    own = {"do_lower_case": False, "vocab_type": "spm", "split_by_punct": False, "sp_model_kwargs": {}}
    rewrite(path / "tokenizer_config.json", lambda told: {**told, **own})
    return known


@folder
def modernbert(path):
    tokenizer = wordpiece()
    config = sized("ModernBert", tokenizer, local_attention=16, global_attn_every_n_layers=2)
    return mean(path, transformers.ModernBertModel(config), tokenizer)


@folder
def nomic_like_rotary(path):
    tokenizer = wordpiece()
    return mean(path, transformers.RoFormerModel(sized("RoFormer", tokenizer, embedding_size=32)), tokenizer, BERT)


@folder
def sentence_t5(path):
    from sentence_transformers.models import Dense

    tokenizer = unigram("$A </s>", [("</s>", 2)])
    config = transformers.T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, pad_token_id=1)
    model = transformers.T5EncoderModel(eager(config))
    dense = Dense(32, 24, bias=False, activation_function=torch.nn.Identity())
    return mean(path, model, tokenizer, PLAIN, dense, normalize())


@folder
def umt5_encoder(path):
    tokenizer = unigram("$A </s>", [("</s>", 2)])
    config = transformers.UMT5Config(vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, pad_token_id=1)
    return mean(path, transformers.UMT5EncoderModel(eager(config)), tokenizer, PLAIN, normalize())


@folder
def xlnet(path):
    tokenizer = unigram("$A <sep> <cls>", [("<sep>", 2), ("<cls>", 0)])
    tokenizer.padding_side = "left"
    config = transformers.XLNetConfig(vocab_size=len(tokenizer), d_model=32, n_layer=2, n_head=2, d_inner=64, pad_token_id=1)
    return mean(path, transformers.XLNetModel(config), tokenizer, BERT)


@folder
def funnel(path):
    """Its graph has the length of the texts that it was traced with."""
    tokenizer = wordpiece()
    config = transformers.FunnelConfig(vocab_size=len(tokenizer), block_sizes=[1, 1], d_model=32, n_head=2, d_head=16, d_inner=64, num_decoder_layers=1)
    return mean(path, transformers.FunnelModel(config), tokenizer, BERT)


@folder
def longformer(path):
    """Likewise: the trace keeps the rows of its example after they were padded to a multiple of the window."""
    tokenizer = roberta_tokenizer()
    config = sized("Longformer", tokenizer, max_position_embeddings=LONGEST + 2, attention_window=8)
    return mean(path, transformers.LongformerModel(config, add_pooling_layer=False), tokenizer)


@folder
def nystromformer(path):
    """A convolution over tokens sees the padding, a little."""
    tokenizer = wordpiece()
    return mean(path, transformers.NystromformerModel(sized("Nystromformer", tokenizer)), tokenizer, BERT)


@folder
def llama_weighted_mean(path):
    """A decoder whose weighted mean counts the tokens of rows that the library fills up on the left."""
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>", padding_side="left",
        model_max_length=LONGEST,
    )
    config = sized("Llama", tokenizer, num_key_value_heads=1, use_cache=False)
    sentence(path, transformers.LlamaModel(config), tokenizer, [pooling("weightedmean"), normalize()], inputs=PLAIN)
    return Folder("embed", PLAIN, ops="pool:weighted_mean, normalize")


@folder
def big_bird(path):
    tokenizer = roberta_tokenizer()
    config = sized("BigBird", tokenizer, attention_type="original_full")
    return mean(path, transformers.BigBirdModel(config, add_pooling_layer=False), tokenizer)


@folder
def gemma_with_two_dense(path):
    """EmbeddingGemma's form: attention in both directions, prompts, two Dense layers."""
    from sentence_transformers.models import Dense

    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>", model_max_length=LONGEST,
    )
    config = transformers.Gemma3TextConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        intermediate_size=64, max_position_embeddings=512, sliding_window=16, use_bidirectional_attention=True, pad_token_id=1, use_cache=False,
    )
    identity = torch.nn.Identity()
    dense = [Dense(32, 48, bias=False, activation_function=identity), Dense(48, 32, bias=False, activation_function=identity)]
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    sentence(path, transformers.Gemma3TextModel(eager(config)), tokenizer, [pooling("mean"), *dense, normalize()], inputs=PLAIN, prompts=prompts,
             exporter=export_by_torchs_default)
    return Folder("embed", PLAIN, prompt_names=[None, "query", "document"])
