#include "models/files/safetensors.h"
#include "tests/fuzz/promises.h"

namespace sluice::fuzzing {

bool fuzz_safetensors(Input input) {
  const MemoryFile memory(text_of(input));
  return is_taken([&] {
    const SafetensorsFile file = SafetensorsFile::open(memory.path());
    demand(SafetensorsFile::header_bytes(memory.path()) != 0, "a file that opens has a header");
    for (const SafetensorsTensor& tensor : file.tensors()) {
      demand(tensor.begin <= input.size() && tensor.bytes <= input.size() - tensor.begin,
             "a tensor lies in its file");
      demand(file.find(tensor.name) == &tensor, "a tensor is found by its name");
      shown_name(tensor.name), shown_shape(tensor.shape);
      std::vector<char> raw(tensor.bytes);
      file.read_raw(tensor, 0, tensor.bytes, raw.data());
      std::vector<float> values(tensor.elements());
      is_taken([&] { file.read_f32(tensor, 0, tensor.elements(), values.data()); });  // not of integers
    }
  });
}

}  // namespace sluice::fuzzing
