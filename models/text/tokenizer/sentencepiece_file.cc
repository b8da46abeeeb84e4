// The file is a ModelProto in protobuf's wire format (sentencepiece_model.proto of
// https://github.com/google/sentencepiece; https://protobuf.dev/programming-guides/encoding). Field numbers
// stand beside the fields. A field that this reader does not know is skipped, as protobuf demands.
#include "models/text/tokenizer/sentencepiece_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "models/text/tokenizer/token_additions.h"
#include "models/text/unicode.h"

namespace sluice {
namespace {

constexpr uint64_t kModelBytesMax = uint64_t{64} << 20;  // published files have up to 5 MB
constexpr size_t kPieceBytesMax = 2048;                  // SentencePiece's own limit: 512 characters
constexpr std::string_view kBlank = "\xE2\x96\x81";      // U+2581, for a blank

struct Field {
  uint64_t number = 0;  // 0: there is no more
  uint64_t value = 0;   // of an integer, or the bits of a float
  std::string_view bytes;
};

class Message {
 public:
  explicit Message(std::string_view bytes) : left_(bytes) {}

  Field next() {
    Field field;
    if (left_.empty()) return field;
    const uint64_t tag = integer();
    field.number = tag >> 3;
    if (field.number == 0) throw std::invalid_argument("a field has the number 0");
    switch (tag & 7) {
      case 0:
        field.value = integer();
        break;
      case 1:
        field.value = fixed(8);
        break;
      case 2:
        field.bytes = take(integer());
        break;
      case 5:
        field.value = fixed(4);
        break;
      default:
        throw std::invalid_argument("a field has an unknown type");
    }
    return field;
  }

 private:
  std::string_view take(uint64_t bytes) {
    if (bytes > left_.size()) throw std::invalid_argument("it ends in the middle of a field");
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  uint64_t fixed(size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, take(bytes).data(), bytes);
    return value;
  }
  uint64_t integer() {  // 7 bits in each byte, the lowest first
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1).front());
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    throw std::invalid_argument("an integer has more than 64 bits");
  }

  std::string_view left_;
};

enum PieceType : uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4 };

struct ModelPiece {
  std::string content;      // 1
  float score = 0;          // 2
  uint64_t type = kNormal;  // 3
};

struct Model {
  std::vector<ModelPiece> pieces;        // 1
  uint64_t type = 1;                     // trainer_spec (2), 3: 1 is Unigram, 2 is BPE
  bool byte_fallback = false;            // trainer_spec, 35
  uint64_t bos = 1, eos = 2;             // trainer_spec, 41 and 42
  bool add_dummy_prefix = true;          // normalizer_spec (3), 3
  bool remove_extra_whitespaces = true;  // normalizer_spec, 4
  bool escape_whitespaces = true;        // normalizer_spec, 5
  bool has_charsmap = false;             // normalizer_spec, 2: rules of a normalization
};

ModelPiece parse_piece(std::string_view bytes) {
  ModelPiece piece;
  Message message(bytes);
  for (Field field = message.next(); field.number != 0; field = message.next()) {
    if (field.number == 1) piece.content = field.bytes;
    if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    if (field.number == 3) piece.type = field.value;
  }
  if (piece.content.empty() || !is_utf8(piece.content))
    throw std::invalid_argument("a piece is empty or not UTF-8");
  if (piece.type == kNormal && piece.content.size() > kPieceBytesMax)
    throw std::invalid_argument(fmt::format("a piece has more than {} bytes", kPieceBytesMax));
  return piece;
}

void parse_trainer(std::string_view bytes, Model& model) {
  Message message(bytes);
  for (Field field = message.next(); field.number != 0; field = message.next()) {
    if (field.number == 3) model.type = field.value;
    if (field.number == 35) model.byte_fallback = field.value != 0;
    if (field.number == 41) model.bos = field.value;
    if (field.number == 42) model.eos = field.value;
  }
}

void parse_normalizer(std::string_view bytes, Model& model) {
  Message message(bytes);
  for (Field field = message.next(); field.number != 0; field = message.next()) {
    if (field.number == 2) model.has_charsmap = !field.bytes.empty();
    if (field.number == 3) model.add_dummy_prefix = field.value != 0;
    if (field.number == 4) model.remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) model.escape_whitespaces = field.value != 0;
  }
}

Model parse(std::string_view bytes) {
  Model model;
  Message message(bytes);
  for (Field field = message.next(); field.number != 0; field = message.next()) {
    if (field.number == 1) model.pieces.push_back(parse_piece(field.bytes));
    if (field.number == 2) parse_trainer(field.bytes, model);
    if (field.number == 3) parse_normalizer(field.bytes, model);
  }
  if (model.pieces.empty()) throw std::invalid_argument("it has no pieces");
  if (model.pieces.size() > kIdMax) throw std::invalid_argument("it has too many pieces");
  return model;
}

// Names what the model does with text but the tokenizer built below cannot do; empty: there is nothing.
std::string unsupported_part(const Model& model) {
  if (model.type != 2) return model.type == 1 ? "a model of type Unigram" : "a model that is not of type BPE";
  if (model.has_charsmap) return "a normalization of characters (precompiled_charsmap)";
  if (model.remove_extra_whitespaces) return "remove_extra_whitespaces";
  if (!model.escape_whitespaces) return "a model without escape_whitespaces";
  return "";
}

Vocabulary vocabulary_of(const Model& model) {
  Vocabulary vocabulary;
  for (uint32_t id = 0; id < model.pieces.size(); ++id)
    if (!vocabulary.add(model.pieces[id].content, id))
      throw std::invalid_argument(
          fmt::format("piece \"{}\" is given twice", printable(model.pieces[id].content)));
  return vocabulary;
}

// Every two pieces that make up a normal piece are a merge. Merges are ordered by the score of the piece that
// they make, best first, then by the piece's place, then by the length of the left part, shortest first.
std::vector<Bpe::Merge> merges_of(const Model& model, const Vocabulary& vocabulary) {
  std::vector<const ModelPiece*> order;
  for (const ModelPiece& piece : model.pieces)
    if (piece.type == kNormal) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(),
                   [](const ModelPiece* a, const ModelPiece* b) { return a->score > b->score; });
  const auto is_part = [&](const std::string& text) {
    const auto id = vocabulary.id_of(text);
    return id && model.pieces[*id].type != kUnknown && model.pieces[*id].type != kControl;
  };
  std::vector<Bpe::Merge> merges;
  for (const ModelPiece* piece : order) {
    size_t at = 0;
    for (next_code_point(piece->content, at); at < piece->content.size();
         next_code_point(piece->content, at)) {
      std::string left = piece->content.substr(0, at), right = piece->content.substr(at);
      if (is_part(left) && is_part(right)) merges.emplace_back(std::move(left), std::move(right));
    }
  }
  return merges;
}

// Tokens of the files beside the model come first, so their flags count.
std::vector<AddedToken> added_tokens_of(const Model& model, const TokenAdditions& additions,
                                        const Vocabulary& vocabulary) {
  AddedTokenList list(vocabulary);
  add_tokens(additions, list);
  for (const ModelPiece& piece : model.pieces) {
    const bool special = piece.type == kUnknown || piece.type == kControl;
    if ((special || piece.type == kUserDefined) && !list.contains(piece.content))
      list.add({.content = piece.content, .special = special});
  }
  return list.tokens();
}

// Gives the model's own control tokens their names, unless a file gives the name to a token.
void name_own_tokens(const Model& model, TokenAdditions& additions) {
  const auto name = [&](const char* key, uint64_t id, PieceType type) {
    const auto is_named = [&](const auto& named) { return named.first == key; };
    const bool given = std::any_of(additions.named.begin(), additions.named.end(), is_named);
    if (id < model.pieces.size() && model.pieces[id].type == type && !given)
      additions.named.emplace_back(key, GivenToken{.content = model.pieces[id].content, .special = true});
  };
  name("bos_token", model.bos, kControl);
  name("eos_token", model.eos, kControl);
  for (uint64_t id = 0; id < model.pieces.size(); ++id) name("unk_token", id, kUnknown);
}

// The id of the token that has a name; empty if there is none.
std::vector<uint32_t> ids_of(const char* name, const std::map<std::string, std::string>& controls,
                             const AddedTokens& added) {
  const auto named = controls.find(name);
  if (named == controls.end()) return {};
  return {added.by_content(named->second)->id};
}

TokenizerParts make_parts(const Model& model, const TokenAdditions& additions) {
  Vocabulary vocabulary = vocabulary_of(model);
  std::vector<Bpe::Merge> merges = merges_of(model, vocabulary);
  BpeOptions options{.byte_fallback = model.byte_fallback, .fuse_unknown = true};
  for (const ModelPiece& piece : model.pieces)
    if (piece.type == kUnknown) options.unknown = piece.content;
  const std::string blank(kBlank);
  std::vector<PreTokenizer> pre_tokenizers;
  pre_tokenizers.push_back(
      MetaspaceStep{blank, model.add_dummy_prefix ? PrependScheme::first : PrependScheme::never, false});
  TokenDecoder decoder;
  decoder.steps = {ReplaceDecoder{blank, " "}, ByteFallbackDecoder{}, FuseDecoder{}};
  if (model.add_dummy_prefix) decoder.steps.push_back(StripDecoder{U' ', 1, 0});
  AddedTokens added(added_tokens_of(model, additions, vocabulary), {});
  std::map<std::string, std::string> controls = controls_of(additions);
  std::vector<uint32_t> prefix, suffix;
  if (additions.add_bos.value_or(true)) prefix = ids_of("bos_token", controls, added);
  if (additions.add_eos.value_or(false)) suffix = ids_of("eos_token", controls, added);
  return {{},
          std::move(pre_tokenizers),
          Bpe(std::move(vocabulary), merges, std::move(options)),
          std::move(added),
          std::move(decoder),
          std::move(prefix),
          std::move(suffix),
          std::move(controls)};
}

}  // namespace

TokenizerParts read_sentencepiece_file(const std::string& path) {
  const std::string bytes = read_text_file(path, kModelBytesMax);
  try {
    const Model model = parse(bytes);
    if (const std::string part = unsupported_part(model); !part.empty())
      throw Error(ExitCode::malformed_file, fmt::format("{}: {} is not supported.", printable(path), part),
                  "Convert it to tokenizer.json with transformers.");
    TokenAdditions additions = read_token_additions(std::filesystem::path(path).parent_path());
    name_own_tokens(model, additions);
    return make_parts(model, additions);
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::malformed_file, fmt::format("{}: {}.", printable(path), error.what()),
                "Copy the file again from the model's release.");
  }
}

}  // namespace sluice
