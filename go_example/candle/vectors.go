//go:build cgo

package main

/*
#include <stdlib.h>
#include "declarations.h"
*/
import "C"

import "unsafe"

// array copies strings to C; release frees them.
func array(texts []string) (first **C.char, release func()) {
	if len(texts) == 0 {
		return nil, func() {}
	}
	memory := C.malloc(C.size_t(len(texts)) * C.size_t(unsafe.Sizeof(uintptr(0))))
	pointers := unsafe.Slice((**C.char)(memory), len(texts))
	for i, text := range texts {
		pointers[i] = C.CString(text)
	}
	return &pointers[0], func() {
		for _, p := range pointers {
			C.free(unsafe.Pointer(p))
		}
		C.free(memory)
	}
}

// ---- Similarity and tokens

func similarityLoaded() bool { return bool(C.is_similarity_model_initialized()) }

func textEmbedding(text string, maxLength int) (embedding, error) {
	return withC2(func(s ...*C.char) (embedding, error) {
		r := C.get_text_embedding(s[0], C.int(maxLength))
		return filled(0, &r)
	}, text)
}

func similarity(one, two string) float32 {
	return withC(func(s ...*C.char) float32 { return float32(C.calculate_similarity(s[0], s[1], 0)) }, one, two)
}

func mostSimilar(query string, candidates []string) (index int, score float32) {
	first, release := array(candidates)
	defer release()
	r := withC(func(s ...*C.char) C.SimilarityResult {
		return C.find_most_similar(s[0], first, C.int(len(candidates)), 0)
	}, query)
	return int(r.index), float32(r.score)
}

func tokenize(text string) (ids []int, tokens []string, err error) {
	r := withC(func(s ...*C.char) C.TokenizationResult { return C.tokenize_text(s[0], 0) }, text)
	defer C.free_tokenization_result(r)
	if r.error {
		return nil, nil, errFailed
	}
	for i, id := range unsafe.Slice(r.token_ids, int(r.token_count)) {
		ids = append(ids, int(id))
		tokens = append(tokens, C.GoString(unsafe.Slice(r.tokens, int(r.token_count))[i]))
	}
	return ids, tokens, nil
}

// ---- Embedding models

// withC2 is withC for functions that may fail.
func withC2[T any](f func(strings ...*C.char) (T, error), strings ...string) (T, error) {
	var err error
	value := withC(func(s ...*C.char) (v T) {
		v, err = f(s...)
		return v
	}, strings...)
	return value, err
}

// orNull is NULL for a model that is not wanted.
func orNull(s *C.char) *C.char {
	if *s == 0 {
		return nil
	}
	return s
}

func loadEmbeddings(qwen3, gemma string) bool {
	return withC(func(s ...*C.char) bool {
		return bool(C.init_embedding_models(orNull(s[0]), orNull(s[1]), true))
	}, qwen3, gemma)
}

func loadEmbeddingsWithMmBert(qwen3, gemma, mmbert string) bool {
	return withC(func(s ...*C.char) bool {
		return bool(C.init_embedding_models_with_mmbert(orNull(s[0]), orNull(s[1]), orNull(s[2]), true))
	}, qwen3, gemma, mmbert)
}

func loadBatched(qwen3 string, batch, waitMs int) bool {
	return withC(func(s ...*C.char) bool {
		return bool(C.init_embedding_models_batched(s[0], C.int(batch), C.ulonglong(waitMs), true))
	}, qwen3)
}

func embedSmart(text string, quality, latency float32) (embedding, error) {
	var r C.EmbeddingResult
	return filled(withC(func(s ...*C.char) C.int {
		return C.get_embedding_smart(s[0], C.float(quality), C.float(latency), &r)
	}, text), &r)
}

func embedWithDim(text string, quality, latency float32, dimension int) (embedding, error) {
	var r C.EmbeddingResult
	return filled(withC(func(s ...*C.char) C.int {
		return C.get_embedding_with_dim(s[0], C.float(quality), C.float(latency), C.int(dimension), &r)
	}, text), &r)
}

func embedWithModel(text, model string, dimension int) (embedding, error) {
	var r C.EmbeddingResult
	return filled(withC(func(s ...*C.char) C.int {
		return C.get_embedding_with_model_type(s[0], s[1], C.int(dimension), &r)
	}, text, model), &r)
}

func embedBatched(text string) (embedding, error) {
	var r C.EmbeddingResult
	return filled(withC(func(s ...*C.char) C.int {
		return C.get_embedding_batched(s[0], s[1], 0, &r)
	}, text, "qwen3"), &r)
}

func embeddingSimilarity(one, two, model string) (float32, error) {
	var r C.EmbeddingSimilarityResult
	status := withC(func(s ...*C.char) C.int {
		return C.calculate_embedding_similarity(s[0], s[1], s[2], 0, &r)
	}, one, two, model)
	if status != 0 || bool(r.error) {
		return 0, errFailed
	}
	return float32(r.similarity), nil
}

// topK returns the indexes of the most similar candidates. As in candle-binding, the model
// is read after the matches are freed.
func topK(query string, candidates []string, k int, model string) (indexes []int, by int, err error) {
	first, release := array(candidates)
	defer release()
	var r C.BatchSimilarityResult
	status := withC(func(s ...*C.char) C.int {
		return C.calculate_similarity_batch(s[0], first, C.int(len(candidates)), C.int(k), s[1], 0, &r)
	}, query, model)
	if status != 0 || bool(r.error) {
		return nil, 0, errFailed
	}
	for _, match := range unsafe.Slice(r.matches, int(r.num_matches)) {
		indexes = append(indexes, int(match.index))
	}
	C.free_batch_similarity_result(&r)
	return indexes, int(r.model_type), nil
}

func modelsInfo() (loaded []string, err error) {
	var r C.EmbeddingModelsInfoResult
	status := C.get_embedding_models_info(&r)
	defer C.free_embedding_models_info(&r)
	if status != 0 || bool(r.error) {
		return nil, errFailed
	}
	for _, model := range unsafe.Slice(r.models, int(r.num_models)) {
		if model.is_loaded {
			loaded = append(loaded, C.GoString(model.model_name))
		}
	}
	return loaded, nil
}

// ---- Selectors

type selector struct{ handle unsafe.Pointer }

// newSelectors makes one in each of the ways there are: untrained ones, and from JSON.
func newSelectors(json string) (untrained, trained []selector) {
	untrained = []selector{
		{C.candle_mlp_new()}, {C.candle_mlp_new_with_device(0)}, {C.candle_mlp_new_with_device_and_dtype(0, 0)},
	}
	withC(func(s ...*C.char) bool {
		trained = []selector{
			{C.candle_mlp_from_json(s[0])}, {C.candle_mlp_from_json_with_device(s[0], 0)},
			{C.candle_mlp_from_json_with_device_and_dtype(s[0], 0, 0)},
		}
		return true
	}, json)
	return untrained, trained
}

func (s selector) close() { C.candle_mlp_free(s.handle) }

func (s selector) isTrained() bool { return C.candle_mlp_is_trained(s.handle) != 0 }

func taken(text *C.char) string {
	defer C.candle_mlp_free_string(text)
	return C.GoString(text)
}

func (s selector) choose(query []float64) string {
	return taken(C.candle_mlp_select(s.handle, (*C.double)(&query[0]), C.size_t(len(query))))
}

func (s selector) json() string { return taken(C.candle_mlp_to_json(s.handle)) }
