// What the names in GGUF's tokenizer.ggml.pre stand for. The expressions are those of the models' own tokenizers.
#include "common/text/pretokenize.h"

#define SUFFIXES "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
#define PUNCTUATION " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define HAN_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+"
#define HAN_TO_HANGUL "[\\x{4e00}-\\x{9fa5}\\x{0800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define GPT4O_SUFFIXES "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

const char bt_pre_regex_gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static const char *const gpt2[] = {bt_pre_regex_gpt2, NULL};
static const char *const digits_gpt2[] = {"\\p{N}", bt_pre_regex_gpt2, NULL};
static const char *const llama3[] = {SUFFIXES "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" PUNCTUATION, NULL};
static const char *const qwen2[] = {SUFFIXES "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" PUNCTUATION, NULL};
static const char *const qwen35[] = {SUFFIXES "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                                              " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                                     NULL};
static const char *const falcon[] = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", bt_pre_regex_gpt2, "[0-9][0-9][0-9]", NULL};
static const char *const deepseek_coder[] = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN_TO_HANGUL, "\\p{N}", NULL};
static const char *const deepseek_v3[] = {
    "\\p{N}{1,3}", HAN_KANA,
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    NULL};
// The letters of the second expression are those with case, as they were when that tokenizer was made.
// (The formatter would cut this string after every few of them.)
// clang-format off
static const char *const deepseek_llm[] = {
    "[\\r\\n]",
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\\x{1f7d}ᾀ-ᾴ"
    "ᾶ-ᾼ\\x{1fbe}ῂ-ῄῆ-ῌῐ-\\x{1fd3}ῖ-\\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\\x{2126}ℨ\\x{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-"
    "ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    "\\s?[!-/:-~！-／：-～‘-‟\\x{3000}-。]+",
    "\\s+$",
    HAN_TO_HANGUL,
    "\\p{N}+",
    NULL};
// clang-format on
static const char *const tekken[] = {"[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+|[^\\r\\n\\p{L}\\p{N}]?[" UPPER
                                     "]+[" LOWER
                                     "]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                                     NULL};
static const char *const gpt4o[] = {"[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" GPT4O_SUFFIXES
                                    "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER "]*" GPT4O_SUFFIXES
                                    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                                    NULL};
static const char *const gemma4[] = {"[^\\n]+|[\\n]+", NULL};

static const bt_pre_name gpt2_kind = {gpt2, false, false, false}, gpt2_nfc = {gpt2, true, false, false},
                         digits_kind = {digits_gpt2, false, false, false}, llama3_kind = {llama3, false, true, false},
                         chatglm_kind = {llama3, false, false, false}, qwen2_kind = {qwen2, true, false, false},
                         stablelm_kind = {qwen2, false, false, false}, qwen35_kind = {qwen35, false, false, false},
                         falcon_kind = {falcon, false, false, false},
                         coder_kind = {deepseek_coder, false, false, false},
                         v3_kind = {deepseek_v3, false, false, false}, llm_kind = {deepseek_llm, false, false, false},
                         tekken_kind = {tekken, false, true, false}, gpt4o_kind = {gpt4o, false, true, false},
                         gemma4_kind = {gemma4, false, false, true};

static const struct {
    const char *name;
    const bt_pre_name *kind;
} names[] = {
    {"default", &gpt2_kind},
    {"gpt-2", &gpt2_kind},
    {"phi-2", &gpt2_kind},
    {"jina-v2-es", &gpt2_kind},
    {"jina-v2-de", &gpt2_kind},
    {"jina-v2-code", &gpt2_kind},
    {"roberta-bpe", &gpt2_kind},
    {"mpt", &gpt2_nfc},
    {"olmo", &gpt2_nfc},
    {"smollm", &digits_kind},
    {"starcoder", &digits_kind},
    {"refact", &digits_kind},
    {"command-r", &digits_kind},
    {"codeshell", &digits_kind},
    {"exaone", &digits_kind},
    {"minerva-7b", &digits_kind},
    {"llama3", &llama3_kind},
    {"llama-v3", &llama3_kind},
    {"llama-bpe", &llama3_kind},
    {"falcon3", &llama3_kind},
    {"lfm2", &llama3_kind},
    {"smaug-bpe", &chatglm_kind},
    {"dbrx", &chatglm_kind},
    {"chatglm-bpe", &chatglm_kind},
    {"glm4", &chatglm_kind},
    {"qwen2", &qwen2_kind},
    {"deepseek-r1-qwen", &qwen2_kind},
    {"stablelm2", &stablelm_kind},
    {"qwen35", &qwen35_kind},
    {"falcon", &falcon_kind},
    {"deepseek-llm", &llm_kind},
    {"deepseek-coder", &coder_kind},
    {"deepseek-v3", &v3_kind},
    {"tekken", &tekken_kind},
    {"gpt-4o", &gpt4o_kind},
    {"llama4", &gpt4o_kind},
    {"gemma4", &gemma4_kind},
    {"gemma-4", &gemma4_kind},
};

const bt_pre_name *
bt_pre_name_find(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].name, name) == 0) {
            return names[i].kind;
        }
    }
    return NULL;
}
