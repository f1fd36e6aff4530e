"""What the evaluation scripts share: questions, extraction, the resumable run and its report."""
