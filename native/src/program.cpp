#include "program.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "mlx/transforms.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

using Arrays = std::vector<mx::array>;

/// Which of a program's values: first its inputs, then what its operations give.
using Place = size_t;

/// An operand that is another one in each run.
struct Link {
    size_t operand;
    Place place;
};

struct Operation {
    std::shared_ptr<CpuPrimitive> primitive;
    Arrays operands;  // where links lead there is only a stand-in
    std::vector<Link> links;
    Place first;  // of what it gives
    std::vector<mx::Dtype> dtypes;
    std::vector<Place> read_last;  // what no later operation reads
};

/// The shape that an array may have.
class Form {
  public:
    Form(const mx::array& array, const Dimensions& names, std::unordered_map<std::string, size_t>& numbers)
        : dtype_(array.dtype()), sizes_(array.shape()) {
        require(names.size() == array.ndim(), "dimensions", "are not as many as the array has");
        for (const auto& name : names) {
            names_.push_back(name ? numbers.emplace(*name, numbers.size()).first->second : kNone);
        }
    }

    /// @param sizes by the number of the name, where they are known; others become known.
    bool is_met_by(const mx::array& array, std::vector<int>& sizes) const {
        if (array.dtype() != dtype_ || array.ndim() != names_.size()) {
            return false;
        }
        for (size_t axis = 0; axis < names_.size(); ++axis) {
            int size = array.shape()[axis];
            if (names_[axis] != kNone && sizes[names_[axis]] == kUnknown) {
                sizes[names_[axis]] = size;
            }
            if (size != size_at(axis, sizes)) {
                return false;
            }
        }
        return true;
    }

    mx::Shape shape(const std::vector<int>& sizes) const {
        mx::Shape shape;
        for (size_t axis = 0; axis < names_.size(); ++axis) {
            shape.push_back(size_at(axis, sizes));
        }
        return shape;
    }

    mx::Dtype dtype() const { return dtype_; }

    static constexpr int kUnknown = -1;

  private:
    int size_at(size_t axis, const std::vector<int>& sizes) const {
        return names_[axis] == kNone ? sizes_[axis] : sizes[names_[axis]];
    }

    static constexpr size_t kNone = SIZE_MAX;

    mx::Dtype dtype_;
    mx::Shape sizes_;
    std::vector<size_t> names_;
};

/// Follows a graph from what it gives back to its inputs.
class Recorder {
  public:
    explicit Recorder(const Arrays& inputs) {
        for (const mx::array& input : inputs) {
            require(places_.emplace(input.id(), places_.size()).second, "inputs", "have one array twice");
        }
    }

    /// Records what makes an array, and returns its place; none where it does not hang on the inputs.
    std::optional<Place> record(const mx::array& array) {
        if (auto found = places_.find(array.id()); found != places_.end()) {
            return found->second;
        }
        if (!array.has_primitive() || constants_.contains(array.id())) {
            return std::nullopt;
        }
        std::vector<Link> links;
        for (size_t i = 0; i < array.inputs().size(); ++i) {
            if (std::optional<Place> place = record(array.inputs()[i])) {
                links.push_back({i, *place});
            }
        }
        if (links.empty()) {
            constants_.insert(array.id());
            return std::nullopt;
        }
        append(array, std::move(links));
        return places_.at(array.id());
    }

    std::vector<Operation> finish(const std::vector<Place>& outputs) {
        std::unordered_set<Place> read(outputs.begin(), outputs.end());
        for (auto operation = operations_.rbegin(); operation != operations_.rend(); ++operation) {
            for (Place place = operation->first; place < operation->first + operation->dtypes.size(); ++place) {
                note_read(place, read, *operation);
            }
            for (const Link& link : operation->links) {
                note_read(link.place, read, *operation);
            }
        }
        return std::move(operations_);
    }

    size_t num_values() const { return places_.size(); }

  private:
    void append(const mx::array& array, std::vector<Link> links) {
        auto primitive = std::dynamic_pointer_cast<CpuPrimitive>(array.primitive_ptr());
        if (primitive == nullptr) {
            throw NotRecordable(array.primitive().name());
        }
        Operation operation{std::move(primitive), array.inputs(), std::move(links), places_.size(), {}, {}};
        for (const Link& link : operation.links) {
            operation.operands[link.operand] = stand_in_;
        }
        mx::eval(operation.operands);
        for (const mx::array& output : array.outputs()) {
            places_.emplace(output.id(), places_.size());
            operation.dtypes.push_back(output.dtype());
        }
        operations_.push_back(std::move(operation));
    }

    static void note_read(Place place, std::unordered_set<Place>& read, Operation& operation) {
        if (read.insert(place).second) {
            operation.read_last.push_back(place);
        }
    }

    std::unordered_map<std::uintptr_t, Place> places_;
    std::unordered_set<std::uintptr_t> constants_;
    std::vector<Operation> operations_;
    mx::array stand_in_{0.0f};
};

}  // namespace

struct Program::Recording {
    std::vector<Form> inputs;
    std::vector<Form> outputs;
    std::vector<Place> output_places;
    size_t num_names;
    size_t num_values;
    std::vector<Operation> operations;

    void run(const Arrays& given, const Arrays& wanted) const {
        std::vector<std::optional<mx::array>> values(given.begin(), given.end());
        values.resize(num_values);
        for (const Operation& operation : operations) {
            Arrays operands = operation.operands;
            for (const Link& link : operation.links) {
                operands[link.operand] = *values[link.place];
            }
            Arrays results = results_of(operation, operands, wanted);
            operation.primitive->work(operands, results)();
            std::copy(results.begin(), results.end(), values.begin() + static_cast<std::ptrdiff_t>(operation.first));
            for (Place place : operation.read_last) {
                values[place].reset();
            }
        }
    }

    /// Arrays for what an operation gives: those that are wanted, and others with memory of their own.
    Arrays results_of(const Operation& operation, const Arrays& operands, const Arrays& wanted) const {
        std::vector<mx::Shape> shapes = operation.primitive->output_shapes(operands);
        Arrays results;
        for (size_t i = 0; i < shapes.size(); ++i) {
            auto found = std::find(output_places.begin(), output_places.end(), operation.first + i);
            if (found != output_places.end()) {
                results.push_back(wanted[found - output_places.begin()]);
                require(results.back().shape() == shapes[i], "outputs", "have other dimensions than was said");
                continue;
            }
            size_t num_bytes = operation.dtypes[i].size();
            for (auto size : shapes[i]) {
                num_bytes *= size;
            }
            results.emplace_back(mx::allocator::malloc(num_bytes), shapes[i], operation.dtypes[i]);
        }
        return results;
    }
};

namespace {

/// Arrays of the same memory, for the thread of the stream alone: meanwhile MLX takes those of its graph apart.
Arrays apart(const Arrays& arrays) {
    Arrays own;
    for (const mx::array& array : arrays) {
        own.emplace_back(array.shape(), array.dtype(), nullptr, Arrays{});
        own.back().copy_shared_buffer(array);
    }
    return own;
}

class RunProgram : public CpuPrimitive {
  public:
    explicit RunProgram(std::shared_ptr<const Program::Recording> recording) : recording_(std::move(recording)) {}

    Work work(const Arrays& inputs, Arrays& outputs) override {
        return
            [recording = recording_, given = apart(inputs), wanted = apart(outputs)] { recording->run(given, wanted); };
    }

    // What it does may write, as attention over blocks does, so one may never stand for another.
    bool is_equivalent(const mx::Primitive&) const override { return false; }

    DEFINE_NAME(RunProgram)

  private:
    std::shared_ptr<const Program::Recording> recording_;
};

}  // namespace

Program::Program(const Arrays& inputs, const Arrays& outputs, const std::vector<Dimensions>& dimensions) {
    require(dimensions.size() == inputs.size() + outputs.size(), "dimensions", "are not those of each array");
    Recording recording;
    std::unordered_map<std::string, size_t> numbers;
    for (size_t i = 0; i < inputs.size(); ++i) {
        recording.inputs.emplace_back(inputs[i], dimensions[i], numbers);
    }
    size_t num_known = numbers.size();
    Recorder recorder(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
        recording.outputs.emplace_back(outputs[i], dimensions[inputs.size() + i], numbers);
        std::optional<Place> place = recorder.record(outputs[i]);
        require(place && *place >= inputs.size(), "outputs", "are not computed of the inputs");
        auto end = recording.output_places.end();
        require(std::find(recording.output_places.begin(), end, *place) == end, "outputs", "have one array twice");
        recording.output_places.push_back(*place);
    }
    require(numbers.size() == num_known, "dimensions", "of outputs have a name that no input has");
    recording.num_names = num_known;
    recording.operations = recorder.finish(recording.output_places);
    recording.num_values = recorder.num_values();
    recording_ = std::make_shared<const Recording>(std::move(recording));
}

Arrays Program::operator()(const Arrays& inputs) const {
    require(inputs.size() == recording_->inputs.size(), "inputs", "are not as many as were recorded");
    std::vector<int> sizes(recording_->num_names, Form::kUnknown);
    for (size_t i = 0; i < inputs.size(); ++i) {
        require(recording_->inputs[i].is_met_by(inputs[i], sizes), "inputs", "are not of the kinds that were recorded");
    }
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> dtypes;
    for (const Form& form : recording_->outputs) {
        shapes.push_back(form.shape(sizes));
        dtypes.push_back(form.dtype());
    }
    return mx::array::make_arrays(std::move(shapes), dtypes, std::make_shared<RunProgram>(recording_), inputs);
}

}  // namespace pomona
