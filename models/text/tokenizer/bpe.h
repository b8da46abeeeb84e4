// Byte pair encoding: a piece of text to the ids of a vocabulary, by merging neighbours.
//
// Characters become symbols. Then pairs of neighbours that are in the list of merges are merged, the pair
// earliest in the list first and the leftmost of equal pairs first, until no such pair is left (Sennrich et
// al., 2016, arXiv:1508.07909). Order and characters without an id are treated as in Hugging Face
// tokenizers, models/bpe. A heap over a linked list takes O(n log n). A long piece is first cut between
// characters that no merge joins. The cuts do not change the result, and let most parts be found in the
// cache. A Bpe never changes; each thread has a BpeMemory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/tokenizer/flat_table.h"
#include "models/text/tokenizer/vocabulary.h"

namespace sluice {

struct BpeOptions {
  bool ignore_merges = false;  // a piece that is a token as a whole is that token
  bool byte_fallback = false;  // a character without an id becomes the tokens <0x00> to <0xFF> of its bytes
  bool fuse_unknown = false;   // neighbours without an id are one unknown token
  std::optional<std::string> unknown;  // the token of characters without an id; nothing: they are left out
};

// A token of a piece: its id, how many bytes of the piece it covers, and how many before them are left out.
struct Symbol {
  uint32_t id, bytes, left_out = 0;
};

// What one thread keeps from call to call: memory that is used again, and the results of short pieces, in a
// table of fixed size.
class BpeMemory {
 public:
  BpeMemory();

 private:
  friend class Bpe;
  struct Entry {
    std::string piece;
    std::vector<Symbol> symbols;
  };
  struct Link {
    uint32_t id, bytes, previous, next;  // bytes 0: merged into the one before
    uint32_t left_out = 0;               // as in Symbol
  };
  struct Candidate {
    uint32_t rank, place, id;
    bool operator<(const Candidate& other) const {  // the heap's top is the least
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  std::vector<Entry> cache_;
  std::vector<Link> links_;
  std::vector<Candidate> heap_;
};

class Bpe {
 public:
  using Merge = std::pair<std::string, std::string>;
  // Throws std::invalid_argument with a clause when a merge is of strings without an id.
  Bpe(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  // Appends the tokens of `piece`, valid UTF-8 and not empty. Throws Error(malformed_file) when the piece
  // needs the unknown token and the vocabulary lacks it.
  void tokenize(std::string_view piece, BpeMemory& memory, std::vector<Symbol>& to) const;

 private:
  struct Merged {
    uint32_t rank = 0, id = 0;
  };
  std::optional<uint32_t> id_of(char32_t c, std::string_view character) const;
  bool may_join(char32_t a, char32_t b) const;
  void tokenize_part(std::string_view part, BpeMemory& memory, std::vector<Symbol>& to) const;
  void make_links(std::string_view part, BpeMemory& memory) const;
  bool add_bytes(std::string_view character, BpeMemory& memory) const;
  uint32_t unknown_id() const;
  void merge(BpeMemory& memory) const;
  void push(uint32_t place, BpeMemory& memory) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  std::vector<uint32_t> low_ids_;  // of characters below U+10000
  FlatTable<Merged> merges_;       // by two ids
  FlatTable<bool> joined_;         // by two characters that stand next to each other in a merge's result
};

}  // namespace sluice
