// The samples of one record: token ids, each with a mark whether it is trained.
//
// Where each answer of a conversation is a sample, most of a sample stands in the sample before it. So only
// what differs from the sample before is kept. Otherwise memory would grow with the square of a
// conversation's length. Callers: SampleMaker makes them, models/prepare writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace sluice {

struct Sample {
  std::vector<uint32_t> ids = {};
  std::vector<bool> trained = {};
  bool is_text = false;                                 // of no conversation
  size_t unknown_characters = 0, spelled_controls = 0;  // as Encoding has them

  size_t trained_tokens() const;  // the first token never counts: nothing predicts it
};

class Samples {
 private:
  struct Difference {
    size_t shared = 0;  // tokens and marks at the start that the sample before has, too
    Sample rest;        // the tokens and marks behind them, and all other fields
  };

 public:
  // Makes the samples again, one after another.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Sample;
    using difference_type = std::ptrdiff_t;
    using pointer = const Sample*;
    using reference = const Sample&;

    const Sample& operator*() const { return sample_; }
    const Sample* operator->() const { return &sample_; }
    Iterator& operator++();
    bool operator==(const Iterator& other) const { return next_ == other.next_; }

   private:
    friend class Samples;
    Iterator(const Samples& samples, size_t next) : samples_(&samples), next_(next) { make(); }
    void make();

    const Samples* samples_;
    size_t next_;
    Sample sample_;
  };

  void add(Sample sample);

  size_t size() const { return differences_.size(); }
  bool empty() const { return differences_.empty(); }
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }
  Sample operator[](size_t number) const;  // makes all before it, too

 private:
  std::vector<Difference> differences_;
  Sample last_;
};

}  // namespace sluice
