//go:build cgo

package semantic

/*
#cgo LDFLAGS: -lsemantic
#include <stdlib.h>
#include <semantic.h>

void semanticGoLog(void *user, semantic_log_level level, char *message, size_t length);
*/
import "C"

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"
)

// The constants of the package are those of the header: an index other than 0
// does not compile.
var _ = [...][1]struct{}{
	{int(OK) - C.SEMANTIC_OK: {}},
	{int(ErrInvalidArgument) - C.SEMANTIC_INVALID_ARGUMENT: {}},
	{int(ErrNotFound) - C.SEMANTIC_NOT_FOUND: {}},
	{int(ErrAlreadyExists) - C.SEMANTIC_ALREADY_EXISTS: {}},
	{int(ErrUnsupported) - C.SEMANTIC_UNSUPPORTED: {}},
	{int(ErrNotReady) - C.SEMANTIC_NOT_READY: {}},
	{int(ErrClosed) - C.SEMANTIC_CLOSED: {}},
	{int(ErrOverloaded) - C.SEMANTIC_OVERLOADED: {}},
	{int(ErrDeadline) - C.SEMANTIC_DEADLINE: {}},
	{int(ErrTooLong) - C.SEMANTIC_TOO_LONG: {}},
	{int(ErrBadArtifact) - C.SEMANTIC_BAD_ARTIFACT: {}},
	{int(ErrDeviceUnavailable) - C.SEMANTIC_DEVICE_UNAVAILABLE: {}},
	{int(ErrOutOfMemory) - C.SEMANTIC_OUT_OF_MEMORY: {}},
	{int(ErrInterpreter) - C.SEMANTIC_INTERPRETER: {}},
	{int(ErrInternal) - C.SEMANTIC_INTERNAL: {}},
	{int(ErrCancelled) - C.SEMANTIC_CANCELLED: {}},
	{int(ErrPartial) - C.SEMANTIC_PARTIAL: {}},
	{int(TaskSequenceClassification) - C.SEMANTIC_TASK_SEQUENCE_CLASSIFICATION: {}},
	{int(TaskTokenClassification) - C.SEMANTIC_TASK_TOKEN_CLASSIFICATION: {}},
	{int(TaskEmbedding) - C.SEMANTIC_TASK_EMBEDDING: {}},
	{int(PrecisionFP32) - C.SEMANTIC_PRECISION_FP32: {}},
	{int(PrecisionFP16) - C.SEMANTIC_PRECISION_FP16: {}},
	{int(PrecisionBF16) - C.SEMANTIC_PRECISION_BF16: {}},
	{int(PrecisionINT8) - C.SEMANTIC_PRECISION_INT8: {}},
	{int(AdapterMerged) - C.SEMANTIC_ADAPTER_MERGED: {}},
	{int(StateLoading) - C.SEMANTIC_STATE_LOADING: {}},
	{int(StateReady) - C.SEMANTIC_STATE_READY: {}},
	{int(StateStopping) - C.SEMANTIC_STATE_STOPPING: {}},
	{int(LogOff) - C.SEMANTIC_LOG_OFF: {}},
	{int(LogError) - C.SEMANTIC_LOG_ERROR: {}},
	{int(LogWarning) - C.SEMANTIC_LOG_WARNING: {}},
	{int(LogInfo) - C.SEMANTIC_LOG_INFO: {}},
	{int(LogDebug) - C.SEMANTIC_LOG_DEBUG: {}},
	{int(LongTextRefuse) - C.SEMANTIC_LONG_TEXT_REFUSE: {}},
	{int(LongTextCut) - C.SEMANTIC_LONG_TEXT_CUT: {}},
	{int(LongTextWindows) - C.SEMANTIC_LONG_TEXT_WINDOWS: {}},
	{int(ShortenFirst) - C.SEMANTIC_SHORTEN_FIRST: {}},
	{int(ShortenSecond) - C.SEMANTIC_SHORTEN_SECOND: {}},
	{int(OutputEntities) - C.SEMANTIC_OUTPUT_ENTITIES: {}},
	{int(OutputTokens) - C.SEMANTIC_OUTPUT_TOKENS: {}},
	{int(NormalizeOn) - C.SEMANTIC_NORMALIZE_ON: {}},
	{int(NormalizeOff) - C.SEMANTIC_NORMALIZE_OFF: {}},
	{int(CallClassify) - C.SEMANTIC_CALL_CLASSIFY: {}},
	{int(CallClassifyPairs) - C.SEMANTIC_CALL_CLASSIFY_PAIRS: {}},
	{int(CallClassifyTokens) - C.SEMANTIC_CALL_CLASSIFY_TOKENS: {}},
	{int(CallClassifyTokenPairs) - C.SEMANTIC_CALL_CLASSIFY_TOKEN_PAIRS: {}},
	{int(CallEmbed) - C.SEMANTIC_CALL_EMBED: {}},
	{int(CallCountTokens) - C.SEMANTIC_CALL_COUNT_TOKENS: {}},
	{int(PhaseTokenize) - C.SEMANTIC_PHASE_TOKENIZE: {}},
	{int(PhaseQueue) - C.SEMANTIC_PHASE_QUEUE: {}},
	{int(PhaseRun) - C.SEMANTIC_PHASE_RUN: {}},
	{int(PhaseDecode) - C.SEMANTIC_PHASE_DECODE: {}},
}

// ---- Arguments --------------------------------------------------------------

// arguments are what one call passes to C. They are valid until release; err is
// the first of them that C could not take.
type arguments struct {
	pinner  runtime.Pinner
	strings []unsafe.Pointer
	err     error
}

func (a *arguments) release() {
	a.pinner.Unpin()
	for _, s := range a.strings {
		C.free(s)
	}
}

// texts returns an array in Go memory whose texts stay where they are in Go memory.
func (a *arguments) texts(texts []string) *C.semantic_text {
	if len(texts) == 0 {
		return nil
	}
	array := make([]C.semantic_text, len(texts))
	for i, text := range texts {
		if text == "" {
			continue // {NULL, 0} is the empty text
		}
		data := unsafe.StringData(text)
		a.pinner.Pin(data)
		array[i].data = (*C.char)(unsafe.Pointer(data))
		array[i].length = C.size_t(len(text))
	}
	return &array[0]
}

// name copies a name or a path to C.
func (a *arguments) name(field, s string) *C.char {
	if at := strings.IndexByte(s, 0); at >= 0 && a.err == nil {
		a.err = newError(ErrInvalidArgument, "%s holds a NUL at byte %d, where C would cut it", field, at)
	}
	p := C.CString(s)
	a.strings = append(a.strings, unsafe.Pointer(p))
	return p
}

// option is name for optional ones: the empty string is the default.
func (a *arguments) option(field, s string) *C.char {
	if s == "" {
		return nil
	}
	return a.name(field, s)
}

func (a *arguments) int32(field string, n int) C.int32_t {
	if (n < math.MinInt32 || n > math.MaxInt32) && a.err == nil {
		a.err = newError(ErrInvalidArgument, "%s is %d; it must fit in 32 bits", field, n)
	}
	return C.int32_t(n)
}

// runOptions returns nil where all is at its default.
func (a *arguments) runOptions(o RunOptions, limits callLimits) *C.semantic_run_options {
	if o == (RunOptions{}) && limits == (callLimits{}) {
		return nil
	}
	c := &C.semantic_run_options{
		timeout_ms:     C.int64_t(limits.timeoutMS),
		cancel_key:     C.uint64_t(limits.cancelKey),
		long_text:      C.semantic_long_text(o.LongText),
		window_overlap: a.int32("WindowOverlap", o.WindowOverlap),
		shorten:        C.semantic_shorten(o.Shorten),
		dimension:      a.int32("Dimension", o.Dimension),
		layer:          a.int32("Layer", o.Layer),
		threshold:      C.float(o.Threshold),
		prompt_name:    a.option("PromptName", o.PromptName),
		output:         C.semantic_output(o.Output),
		normalize:      C.semantic_normalize(o.Normalize),
		max_tokens:     C.int64_t(o.MaxTokens),
	}
	c.struct_size = C.size_t(unsafe.Sizeof(*c))
	if o.NoPrompt {
		if o.PromptName != "" && a.err == nil {
			a.err = newError(ErrInvalidArgument, "PromptName and NoPrompt are both set; set one")
		}
		c.prompt_name = a.name("PromptName", "")
	}
	return c
}

// ---- Errors -----------------------------------------------------------------

func newFailure() *C.semantic_error {
	e := &C.semantic_error{input_index: -1}
	e.struct_size = C.size_t(unsafe.Sizeof(*e))
	return e
}

// failed returns nil for OK.
func failed(status C.semantic_status, e *C.semantic_error) error {
	if status == C.SEMANTIC_OK {
		return nil
	}
	return &Error{
		Status:  Status(status),
		Input:   int(e.input_index),
		Message: C.GoString(&e.message[0]),
	}
}

// answered tells from the status whether there is a result to read. It fails
// closed: a success without a result is an error.
func answered(status C.semantic_status, result unsafe.Pointer, e *C.semantic_error) (bool, error) {
	if status != C.SEMANTIC_OK && status != C.SEMANTIC_PARTIAL {
		return false, failed(status, e)
	}
	if result == nil {
		return false, newError(ErrInternal, "the library reports %s without a result", Status(status).Error())
	}
	return true, failed(status, e)
}

// withRow lets the error of a partial answer unwrap to that of its first failed row.
func withRow(err error, rows []Row) error {
	if e, ok := err.(*Error); ok {
		if i := slices.IndexFunc(rows, func(r Row) bool { return r.Err != nil }); i >= 0 {
			e.row = rows[i].Err
		}
	}
	return err
}

// ---- Results ----------------------------------------------------------------

func text(t C.semantic_text) string {
	return string(unsafe.Slice((*byte)(unsafe.Pointer(t.data)), int(t.length)))
}

func texts(p *C.semantic_text, n C.size_t) []string {
	out := make([]string, int(n))
	for i, t := range unsafe.Slice(p, int(n)) {
		out[i] = text(t)
	}
	return out
}

func floats(p *C.float, n int) []float32 {
	return slices.Clone(unsafe.Slice((*float32)(p), n))
}

func ints(p *C.int64_t, n C.size_t) []int {
	out := make([]int, int(n))
	for i, v := range unsafe.Slice(p, int(n)) {
		out[i] = int(v)
	}
	return out
}

// part returns row i of a row-major matrix.
func part[T any](matrix []T, i, width int) []T {
	return matrix[i*width : (i+1)*width : (i+1)*width]
}

func copyRows(c *C.semantic_rows) []Row {
	n := int(c.count)
	tokens := unsafe.Slice(c.token_count, n)
	scored := unsafe.Slice(c.scored_token_count, n)
	truncated := unsafe.Slice(c.truncated, n)
	windows := unsafe.Slice(c.window_count, n)
	status := unsafe.Slice(c.status, n)
	message := unsafe.Slice(c.message, n)
	rows := make([]Row, n)
	for i := range rows {
		rows[i] = Row{
			TokenCount:       int(tokens[i]),
			ScoredTokenCount: int(scored[i]),
			Truncated:        truncated[i] != 0,
			WindowCount:      int(windows[i]),
		}
		if status[i] != C.SEMANTIC_OK {
			rows[i].Err = &Error{Status: Status(status[i]), Input: i, Message: text(message[i])}
		}
	}
	return rows
}

func copyClassification(c *C.semantic_classification) (*Classification, []Row) {
	rows := copyRows(c.rows)
	width := int(c.label_count)
	size := len(rows) * width
	index := unsafe.Slice(c.label_index, len(rows))
	score := unsafe.Slice(c.score, len(rows))
	probabilities := floats(c.probabilities, size)
	logits := floats(c.logits, size)
	classMax := floats(c.class_max, size)
	classWindow := slices.Clone(unsafe.Slice((*int32)(c.class_window), size))
	selected := make([]bool, size)
	for i, v := range unsafe.Slice(c.selected, size) {
		selected[i] = v != 0
	}
	out := &Classification{
		Generation: uint64(c.generation),
		Labels:     texts(c.labels, c.label_count),
		MultiLabel: c.multi_label != 0,
		Rows:       make([]ClassificationRow, len(rows)),
	}
	for i, row := range rows {
		out.Rows[i] = ClassificationRow{
			Row:           row,
			LabelIndex:    int(index[i]),
			Score:         float32(score[i]),
			Probabilities: part(probabilities, i, width),
			Logits:        part(logits, i, width),
			Selected:      part(selected, i, width),
			ClassMax:      part(classMax, i, width),
			ClassWindow:   part(classWindow, i, width),
		}
		if index[i] >= 0 {
			out.Rows[i].Label = out.Labels[index[i]]
		}
	}
	return out, rows
}

func copyTokenClassification(c *C.semantic_token_classification) (*TokenClassification, []Row) {
	rows := copyRows(c.rows)
	width := int(c.label_count)
	items := int(c.item_count)
	first := unsafe.Slice(c.row_start, len(rows)+1)
	index := unsafe.Slice(c.label_index, items)
	score := unsafe.Slice(c.score, items)
	start := unsafe.Slice(c.start, items)
	end := unsafe.Slice(c.end, items)
	out := &TokenClassification{
		Generation: uint64(c.generation),
		Labels:     texts(c.labels, c.label_count),
		Rows:       make([]TokenRow, len(rows)),
	}
	spans := make([]Span, items)
	for i := range spans {
		spans[i] = Span{
			Start:      int(start[i]),
			End:        int(end[i]),
			Label:      out.Labels[index[i]],
			LabelIndex: int(index[i]),
			Score:      float32(score[i]),
		}
	}
	if c.probabilities != nil {
		probabilities := floats(c.probabilities, items*width)
		for i := range spans {
			spans[i].Probabilities = part(probabilities, i, width)
		}
	}
	for i, row := range rows {
		out.Rows[i] = TokenRow{Row: row, Spans: spans[first[i]:first[i+1]:first[i+1]]}
	}
	return out, rows
}

func copyEmbeddings(c *C.semantic_embedding) (*Embeddings, []Row) {
	rows := copyRows(c.rows)
	width := int(c.dimension)
	values := floats(c.values, len(rows)*width)
	out := &Embeddings{
		Generation: uint64(c.generation),
		Dimension:  width,
		Rows:       make([]EmbeddingRow, len(rows)),
	}
	for i, row := range rows {
		out.Rows[i] = EmbeddingRow{Row: row, Vector: part(values, i, width)}
	}
	return out, rows
}

func copyTokenCounts(c *C.semantic_token_counts) (*TokenCounts, []Row) {
	rows := copyRows(c.rows)
	first := unsafe.Slice(c.row_start, len(rows)+1)
	start := unsafe.Slice(c.window_start, int(c.window_total))
	end := unsafe.Slice(c.window_end, int(c.window_total))
	tokens := unsafe.Slice(c.window_tokens, int(c.window_total))
	windows := make([]Window, int(c.window_total))
	for i := range windows {
		windows[i] = Window{Start: int(start[i]), End: int(end[i]), Tokens: int(tokens[i])}
	}
	out := &TokenCounts{
		Generation: uint64(c.generation),
		Rows:       make([]TokenCountRow, len(rows)),
	}
	for i, row := range rows {
		out.Rows[i] = TokenCountRow{Row: row, Windows: windows[first[i]:first[i+1]:first[i+1]]}
	}
	return out, rows
}

// ---- Runtime and models -----------------------------------------------------

func nativeStatusName(status Status) string {
	return C.GoString(C.semantic_status_name(C.semantic_status(status)))
}

func nativeVersion() string { return C.GoString(C.semantic_version()) }

func nativeInit(o Options) error {
	const wantMajor, wantMinor = C.SEMANTIC_ABI_MAJOR, C.SEMANTIC_ABI_MINOR
	abi := C.semantic_abi_version()
	if major, minor := abi>>16, abi&0xffff; major != wantMajor || minor < wantMinor {
		return newError(ErrUnsupported,
			"libsemantic %s has ABI %d.%d and this program was built for %d.%d; "+
				"build it with the header of the library that it runs with",
			nativeVersion(), major, minor, wantMajor, wantMinor)
	}
	var args arguments
	defer args.release()
	c := &C.semantic_init_options{
		device:           args.option("Device", o.Device),
		environment:      args.option("Environment", o.Environment),
		intra_op_threads: args.int32("IntraOpThreads", o.IntraOpThreads),
		parallel_runs:    args.int32("ParallelRuns", o.ParallelRuns),
		queue_rows:       C.int64_t(o.QueueRows),
		queue_tokens:     C.int64_t(o.QueueTokens),
		log_level:        C.semantic_log_level(o.LogLevel),
	}
	c.struct_size = C.size_t(unsafe.Sizeof(*c))
	if args.err != nil {
		return args.err
	}
	failure := newFailure()
	return failed(C.semantic_init(c, failure), failure)
}

func nativeCleanup(timeoutMS int64) error {
	failure := newFailure()
	return failed(C.semantic_cleanup(C.int64_t(timeoutMS), failure), failure)
}

func nativeLoad(path string, o LoadOptions, replaces uint64, timeoutMS int64) (uint64, error) {
	var args arguments
	defer args.release()
	folder := args.name("path", path)
	c := &C.semantic_load_options{
		name:             args.option("Name", o.Name),
		task:             C.semantic_task(o.Task),
		precision:        C.semantic_precision(o.Precision),
		device:           args.option("Device", o.Device),
		max_tokens:       C.int64_t(o.MaxTokens),
		max_batch_rows:   args.int32("MaxBatchRows", o.MaxBatchRows),
		max_batch_tokens: args.int32("MaxBatchTokens", o.MaxBatchTokens),
		max_text_bytes:   C.int64_t(o.MaxTextBytes),
		base_path:        args.option("BasePath", o.BasePath),
		replaces:         C.semantic_model{id: C.uint64_t(replaces)},
		intra_op_threads: args.int32("IntraOpThreads", o.IntraOpThreads),
		parallel_runs:    args.int32("ParallelRuns", o.ParallelRuns),
		queue_rows:       C.int64_t(o.QueueRows),
		queue_tokens:     C.int64_t(o.QueueTokens),
		timeout_ms:       C.int64_t(timeoutMS),
		adapter_mode:     C.semantic_adapter_mode(o.AdapterMode),
		arena_bytes:      C.int64_t(o.ArenaBytes),
	}
	c.struct_size = C.size_t(unsafe.Sizeof(*c))
	if args.err != nil {
		return 0, args.err
	}
	var model C.semantic_model
	failure := newFailure()
	status := C.semantic_load_model(folder, c, &model, failure)
	return handle(status, model, failure)
}

func nativeFind(name string) (uint64, error) {
	var args arguments
	defer args.release()
	c := args.name("name", name)
	if args.err != nil {
		return 0, args.err
	}
	var model C.semantic_model
	failure := newFailure()
	status := C.semantic_find_model(c, &model, failure)
	return handle(status, model, failure)
}

func handle(status C.semantic_status, model C.semantic_model, e *C.semantic_error) (uint64, error) {
	if err := failed(status, e); err != nil {
		return 0, err
	}
	if model.id == 0 {
		return 0, newError(ErrInternal, "the library reports OK without a model")
	}
	return uint64(model.id), nil
}

func nativeUnload(id uint64, timeoutMS int64) error {
	failure := newFailure()
	model := C.semantic_model{id: C.uint64_t(id)}
	return failed(C.semantic_unload_model(model, C.int64_t(timeoutMS), failure), failure)
}

func nativeModels() ([]ModelEntry, error) {
	var list *C.semantic_model_list
	failure := newFailure()
	status := C.semantic_list_models(&list, failure)
	if ok, err := answered(status, unsafe.Pointer(list), failure); !ok {
		return nil, err
	}
	defer C.semantic_free(unsafe.Pointer(list))
	return copyModels(list.count, list.model_id, list.name, list.task, list.state), nil
}

func copyModels(
	count C.size_t, id *C.uint64_t, name *C.semantic_text, task *C.semantic_task,
	state *C.semantic_model_state,
) []ModelEntry {
	n := int(count)
	names := texts(name, count)
	ids, tasks, states := unsafe.Slice(id, n), unsafe.Slice(task, n), unsafe.Slice(state, n)
	out := make([]ModelEntry, n)
	for i := range out {
		out[i] = ModelEntry{uint64(ids[i]), names[i], Task(tasks[i]), State(states[i])}
	}
	return out
}

func nativeInfo(id uint64) (*Info, error) {
	var c *C.semantic_model_info
	failure := newFailure()
	status := C.semantic_get_model_info(C.semantic_model{id: C.uint64_t(id)}, &c, failure)
	if ok, err := answered(status, unsafe.Pointer(c), failure); !ok {
		return nil, err
	}
	defer C.semantic_free(unsafe.Pointer(c))
	files := make([]File, int(c.file_count))
	names, sizes := texts(c.file_names, c.file_count), unsafe.Slice(c.file_sizes, len(files))
	for i := range files {
		files[i] = File{Name: names[i], Size: int64(sizes[i])}
	}
	return &Info{
		Generation:    uint64(c.generation),
		Name:          text(c.name),
		Path:          text(c.path),
		Family:        text(c.family),
		Architecture:  text(c.architecture),
		Source:        text(c.source),
		Provider:      text(c.provider),
		DType:         text(c.dtype),
		Task:          Task(c.task),
		MultiLabel:    c.multi_label != 0,
		Labels:        texts(c.labels, c.label_count),
		MaxTokens:     int(c.max_tokens),
		PositionLimit: int(c.position_limit),
		MaxTextBytes:  int(c.max_text_bytes),
		Dimension:     int(c.dimension),
		Dimensions:    ints(c.dimensions, c.dimension_count),
		Layers:        ints(c.layers, c.layer_count),
		PromptNames:   texts(c.prompt_names, c.prompt_count),
		MappedBytes:   int64(c.mapped_bytes),
		GrownBytes:    int64(c.grown_bytes),
		Files:         files,
		Warnings:      texts(c.warnings, c.warning_count),
		JSON:          text(c.json),
		Device:        text(c.device),
		Precision:     text(c.precision),
	}, nil
}

// ---- Calls ------------------------------------------------------------------

func nativeClassify(
	id uint64, inputs []string, options RunOptions, limits callLimits,
) (*Classification, error) {
	var args arguments
	defer args.release()
	array, c := args.texts(inputs), args.runOptions(options, limits)
	if args.err != nil {
		return nil, args.err
	}
	var result *C.semantic_classification
	failure := newFailure()
	status := C.semantic_classify(
		C.semantic_model{id: C.uint64_t(id)}, array, C.size_t(len(inputs)), c, &result, failure)
	return finish(status, result, failure, copyClassification)
}

func nativeClassifyPairs(
	id uint64, left, right []string, options RunOptions, limits callLimits,
) (*Classification, error) {
	var args arguments
	defer args.release()
	first, second, c := args.texts(left), args.texts(right), args.runOptions(options, limits)
	if args.err != nil {
		return nil, args.err
	}
	var result *C.semantic_classification
	failure := newFailure()
	status := C.semantic_classify_pairs(
		C.semantic_model{id: C.uint64_t(id)}, first, second, C.size_t(len(left)), c, &result, failure)
	return finish(status, result, failure, copyClassification)
}

func nativeClassifyTokens(
	id uint64, inputs []string, options RunOptions, limits callLimits,
) (*TokenClassification, error) {
	var args arguments
	defer args.release()
	array, c := args.texts(inputs), args.runOptions(options, limits)
	if args.err != nil {
		return nil, args.err
	}
	var result *C.semantic_token_classification
	failure := newFailure()
	status := C.semantic_classify_tokens(
		C.semantic_model{id: C.uint64_t(id)}, array, C.size_t(len(inputs)), c, &result, failure)
	return finish(status, result, failure, copyTokenClassification)
}

func nativeClassifyTokenPairs(
	id uint64, contexts, answers []string, options RunOptions, limits callLimits,
) (*TokenClassification, error) {
	var args arguments
	defer args.release()
	first, second, c := args.texts(contexts), args.texts(answers), args.runOptions(options, limits)
	if args.err != nil {
		return nil, args.err
	}
	var result *C.semantic_token_classification
	failure := newFailure()
	status := C.semantic_classify_token_pairs(
		C.semantic_model{id: C.uint64_t(id)}, first, second, C.size_t(len(contexts)), c, &result,
		failure)
	return finish(status, result, failure, copyTokenClassification)
}

func nativeEmbed(
	id uint64, inputs []string, options RunOptions, limits callLimits,
) (*Embeddings, error) {
	var args arguments
	defer args.release()
	array, c := args.texts(inputs), args.runOptions(options, limits)
	if args.err != nil {
		return nil, args.err
	}
	var result *C.semantic_embedding
	failure := newFailure()
	status := C.semantic_embed(
		C.semantic_model{id: C.uint64_t(id)}, array, C.size_t(len(inputs)), c, &result, failure)
	return finish(status, result, failure, copyEmbeddings)
}

func nativeCountTokens(
	id uint64, inputs []string, options RunOptions, limits callLimits,
) (*TokenCounts, error) {
	var args arguments
	defer args.release()
	array, c := args.texts(inputs), args.runOptions(options, limits)
	if args.err != nil {
		return nil, args.err
	}
	var result *C.semantic_token_counts
	failure := newFailure()
	status := C.semantic_count_tokens(
		C.semantic_model{id: C.uint64_t(id)}, array, C.size_t(len(inputs)), c, &result, failure)
	return finish(status, result, failure, copyTokenCounts)
}

// finish copies the result of a call out, frees it, and makes the call's error.
func finish[Block, Result any](
	status C.semantic_status, block *Block, e *C.semantic_error,
	copyOut func(*Block) (*Result, []Row),
) (*Result, error) {
	ok, err := answered(status, unsafe.Pointer(block), e)
	if !ok {
		return nil, err
	}
	defer C.semantic_free(unsafe.Pointer(block))
	result, rows := copyOut(block)
	return result, withRow(err, rows)
}

// nativeRunModels answers each request, if only with why C could not take it.
func nativeRunModels(requests []modelRequest, inputs []string) []Answer {
	var args arguments
	defer args.release()
	array := args.texts(inputs)
	out := make([]Answer, len(requests))
	asked := make([]C.semantic_request, 0, len(requests))
	var places []int
	for i, request := range requests {
		c := C.semantic_request{model: C.semantic_model{id: C.uint64_t(request.model)}}
		c.struct_size = C.size_t(unsafe.Sizeof(c))
		c.options = args.runOptions(request.options, request.limits)
		if args.err != nil {
			out[i].Err, args.err = args.err, nil
			continue
		}
		if c.options != nil {
			args.pinner.Pin(c.options)
		}
		asked, places = append(asked, c), append(places, i)
	}
	var result *C.semantic_answers
	failure := newFailure()
	status := C.semantic_run_models(unsafe.SliceData(asked), C.size_t(len(asked)), array,
		C.size_t(len(inputs)), &result, failure)
	ok, err := answered(status, unsafe.Pointer(result), failure)
	if !ok {
		for _, at := range places {
			out[at].Err = err
		}
		return out
	}
	defer C.semantic_free(unsafe.Pointer(result))
	for i, answer := range copyAnswers(result) {
		out[places[i]] = answer
	}
	return out
}

func copyAnswers(c *C.semantic_answers) []Answer {
	n := int(c.count)
	status := unsafe.Slice(c.status, n)
	input := unsafe.Slice(c.input_index, n)
	message := texts(c.message, c.count)
	classification := unsafe.Slice(c.classification, n)
	tokenClassification := unsafe.Slice(c.token_classification, n)
	embedding := unsafe.Slice(c.embedding, n)
	out := make([]Answer, n)
	for i := range out {
		var rows []Row
		switch {
		case classification[i] != nil:
			out[i].Classification, rows = copyClassification(classification[i])
		case tokenClassification[i] != nil:
			out[i].TokenClassification, rows = copyTokenClassification(tokenClassification[i])
		case embedding[i] != nil:
			out[i].Embeddings, rows = copyEmbeddings(embedding[i])
		}
		if status[i] != C.SEMANTIC_OK {
			err := &Error{Status: Status(status[i]), Input: int(input[i]), Message: message[i]}
			out[i].Err = withRow(err, rows)
		}
	}
	return out
}

func nativeCancel(key uint64) error {
	if status := C.semantic_cancel(C.uint64_t(key)); status != C.SEMANTIC_OK {
		return Status(status)
	}
	return nil
}

// ---- Log --------------------------------------------------------------------

var slogLevels = map[LogLevel]slog.Level{
	LogError:   slog.LevelError,
	LogWarning: slog.LevelWarn,
	LogInfo:    slog.LevelInfo,
	LogDebug:   slog.LevelDebug,
}

//export semanticGoLog
func semanticGoLog(_ unsafe.Pointer, level C.semantic_log_level, message *C.char, length C.size_t) {
	if l := logger.Load(); l != nil {
		text := C.GoStringN(message, C.int(length))
		l.Log(context.Background(), slogLevels[LogLevel(level)], text)
	}
}

func nativeSetLogger(set bool) error {
	var callback C.semantic_log_callback
	if set {
		callback = C.semantic_log_callback(C.semanticGoLog)
	}
	if status := C.semantic_set_log_callback(callback, nil); status != C.SEMANTIC_OK {
		return Status(status)
	}
	return nil
}

// ---- Statistics -------------------------------------------------------------

func nativeStats() (*Stats, error) {
	var c *C.semantic_stats
	failure := newFailure()
	status := C.semantic_get_stats(&c, failure)
	if ok, err := answered(status, unsafe.Pointer(c), failure); !ok {
		return nil, err
	}
	defer C.semantic_free(unsafe.Pointer(c))
	out := &Stats{
		Running:             c.running != 0,
		ModelsLoading:       int(c.models_loading),
		ModelsReady:         int(c.models_ready),
		ModelsStopping:      int(c.models_stopping),
		Models:              copyModels(c.model_count, c.model_id, c.model_name, c.model_task, c.model_state),
		Calls:               copyCalls(c),
		ResultsUnfreed:      int(c.results_unfreed),
		ResultsUnfreedBytes: int64(c.results_unfreed_bytes),
		LogDropped:          uint64(c.log_dropped),
		ModelDevices:        texts(c.model_device, c.model_count),
	}
	if c.bucket_count > 0 {
		for _, seconds := range unsafe.Slice(c.bucket_bounds, int(c.bucket_count)-1) {
			out.LatencyBounds = append(out.LatencyBounds, duration(seconds))
		}
		for _, rows := range unsafe.Slice(c.batch_bounds, int(c.batch_bucket_count)-1) {
			out.BatchBounds = append(out.BatchBounds, int(rows))
		}
	}
	owners := texts(c.memory_owner, c.memory_count)
	for i, n := range unsafe.Slice(c.memory_bytes, len(owners)) {
		out.Memory = append(out.Memory, MemoryStats{Owner: owners[i], Bytes: int64(n)})
	}
	return out, nil
}

func duration(seconds C.double) time.Duration {
	return time.Duration(math.Round(float64(seconds) * float64(time.Second)))
}

func copyCalls(c *C.semantic_stats) []CallStats {
	n, buckets, phases := int(c.call_count), int(c.bucket_count), int(c.phase_count)
	batchBuckets := int(c.batch_bucket_count)
	names := texts(c.call_model_name, c.call_count)
	ids := unsafe.Slice(c.call_model_id, n)
	calls := unsafe.Slice(c.call, n)
	latency := slices.Clone(unsafe.Slice((*uint64)(c.latency), n*buckets))
	phaseLatency := slices.Clone(unsafe.Slice((*uint64)(c.phase_latency), n*phases*buckets))
	batchRows := slices.Clone(unsafe.Slice((*uint64)(c.batch_rows), n*batchBuckets))
	seconds := unsafe.Slice(c.latency_seconds, n)
	phaseSeconds := unsafe.Slice(c.phase_seconds, n*phases)
	out := make([]CallStats, n)
	for i := range out {
		at := func(column *C.uint64_t) uint64 { return uint64(unsafe.Slice(column, n)[i]) }
		out[i] = CallStats{
			ModelID:   uint64(ids[i]),
			ModelName: names[i],
			Call:      Call(calls[i]),
			Accepted:  at(c.accepted),
			Completed: at(c.completed),
			Failed:    at(c.failed),
			Expired:   at(c.expired),
			Cancelled: at(c.cancelled),
			InFlight:  at(c.in_flight),
			Refused:   at(c.refused),
			Tokens:    at(c.tokens),
			Truncated: at(c.truncated),
			Batches:   at(c.batches),

			PaddingTokens: at(c.padding_tokens),
			Latency:       Histogram[time.Duration]{part(latency, i, buckets), duration(seconds[i])},
			BatchRows:     Histogram[uint64]{part(batchRows, i, batchBuckets), at(c.batch_rows_sum)},
		}
		for p := range out[i].Phases {
			at := i*phases + p
			out[i].Phases[p] = Histogram[time.Duration]{
				part(phaseLatency, at, buckets), duration(phaseSeconds[at]),
			}
		}
	}
	return out
}
